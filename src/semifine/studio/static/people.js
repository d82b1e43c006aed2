// The person who labels, and the answers of other people.

import { answerName } from "./answers.js";
import { get, post, shownRun } from "./api.js";
import { closeOnOutsideClick, find, make, openDialog } from "./dom.js";
import { keyOf } from "./keyboard.js";

const STORAGE_KEY = "semifine-studio-person";

/** The name is stored per window, so that two people can share a browser. */
export const person = () => sessionStorage.getItem(STORAGE_KEY) || "";

export async function askName() {
  const dialog = find("#name-dialog");
  const input = find("input", dialog);
  input.value = person();
  let problem = "";
  do {
    find(".failed", dialog).textContent = problem;
    problem = (await openDialog(dialog)) === "ok" ? await saveName(input.value) : "";
  } while (problem || !person());
  showName();
}

/** Stores a valid name; returns the error message for an invalid one. */
async function saveName(name) {
  try {
    const checked = await post("person", { person: name });
    sessionStorage.setItem(STORAGE_KEY, checked.person);
    return "";
  } catch (error) {
    return error.message;
  }
}

export function showName() {
  find("#person").textContent = person();
}

/** Uses the name that a link of a shared studio belongs to. */
export function fixName(name) {
  sessionStorage.setItem(STORAGE_KEY, name);
  showName();
  Object.assign(find("#person"), { disabled: true, title: "This link belongs to one person." });
}

/** The verdicts of other people that differ from an answer. */
export const conflictingVerdicts = (answer, verdicts) =>
  verdicts.filter((other) => other.person !== person() && (other.kind !== answer.kind || other.class !== answer.class));

/** "Ada answered Robin". */
export const verdictText = (verdict) =>
  make("span", { class: "verdict" }, make("b", {}, verdict.person), " answered ", make("i", {}, answerName(verdict)));

/** Asks how to treat different verdicts: "both", "replace", or "" to cancel. */
export function askHowToResolve(others, answer) {
  const dialog = find("#replace-dialog");
  find("p", dialog).replaceChildren(
    ...others.flatMap((verdict) => [verdictText(verdict), make("br")]),
    make("b", {}, "You"), " answered ", make("i", {}, answerName(answer)),
  );
  dialog.onkeydown = (event) => find(`[data-key="${CSS.escape(keyOf(event))}"]`, dialog)?.click();
  closeOnOutsideClick(dialog);
  return openDialog(dialog);
}

/** The notice if other people replaced or contradicted the person's answer after an event, else null. */
export function noticeText({ verdicts, replaced }, after) {
  const old = replaced.find((item) => item.person === person() && item.by.number > after);
  if (old)
    return [make("b", {}, old.by.person), ` replaced your answer ${answerName(old)} with `, make("i", {}, answerName(old.by))];
  const own = verdicts.find((verdict) => verdict.person === person());
  const other = own && conflictingVerdicts(own, verdicts).find(({ number }) => number > Math.max(after, own.number));
  return other ? ["Conflict: ", verdictText(other), `, you answered ${answerName(own)}`] : null;
}

const noticeOf = (id) => find(`#notices [data-id="${id}"]`);

/** Shows a notice about an image until the person dismisses it. */
export function showNotice(id, text, state, open) {
  noticeOf(id)?.remove(); // a newer notice replaces an older one
  const line = make(
    "li",
    { "data-id": id, "data-state": state, "data-run": shownRun() },
    make("span", {}, text),
    make("button", { type: "button", on: { click: () => (line.remove(), open()) } }, "Show"),
    make("button", { type: "button", "aria-label": "Dismiss", on: { click: () => line.remove() } }, "✕"),
  );
  find("#notices").prepend(line);
}

/** Removes the notice of a conflict that is resolved. */
export function removeResolved(id, state) {
  const notice = noticeOf(id);
  if (notice?.dataset.state === "conflict" && state !== "conflict") notice.remove();
}

/** Removes the notices of conflicts that were settled in another way: by another model, or by merged classes. */
export async function checkNotices() {
  const notices = [...document.querySelectorAll("#notices [data-state=conflict]")];
  await Promise.all(notices.map(async (notice) => {
    const isSame = notice.dataset.run === shownRun(); // another model may number the images differently
    const isOpen = isSame && (await get(`image/${notice.dataset.id}`).then(({ state }) => state === "conflict", () => true));
    if (!isOpen) notice.remove();
  }));
}

export const clearNotices = () => find("#notices").replaceChildren();
