// The person who labels, and the answers of other people.

import { answerName } from "./answers.js";
import { post } from "./api.js";
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

/** The verdicts of other people that differ from an answer. */
export const conflictingVerdicts = (answer, verdicts) =>
  verdicts.filter((other) => other.person !== person() && (other.kind !== answer.kind || other.class !== answer.class));

/** "Ada says Robin". */
export const verdictText = (verdict) =>
  make("span", { class: "verdict" }, make("b", {}, verdict.person), " says ", make("i", {}, answerName(verdict)));

/** Asks how to treat different verdicts: "both", "replace", or "" to cancel. */
export function askHowToResolve(others, answer) {
  const dialog = find("#replace-dialog");
  find("p", dialog).replaceChildren(
    ...others.flatMap((verdict) => [verdictText(verdict), make("br")]),
    make("b", {}, "You"), " say ", make("i", {}, answerName(answer)),
  );
  dialog.onkeydown = (event) => find(`[data-key="${CSS.escape(keyOf(event))}"]`, dialog)?.click();
  closeOnOutsideClick(dialog);
  return openDialog(dialog);
}

/** Text about what other people did to the person's own answer after an event; null if nothing. */
export function noticeText({ verdicts, replaced }, after) {
  const gone = replaced.find((old) => old.person === person() && old.by.number > after);
  if (gone)
    return [make("b", {}, gone.by.person), ` replaced your answer ${answerName(gone)} with `, make("i", {}, answerName(gone.by))];
  const own = verdicts.find((verdict) => verdict.person === person());
  const other = own && conflictingVerdicts(own, verdicts).find(({ number }) => number > Math.max(after, own.number));
  return other ? ["Conflict: ", verdictText(other), `, you said ${answerName(own)}`] : null;
}

/** Shows a notice about an image until the person dismisses it. */
export function showNotice(id, text, open) {
  find(`#notices [data-id="${id}"]`)?.remove(); // a newer notice replaces an older one
  const line = make(
    "li",
    { "data-id": id },
    make("span", {}, text),
    make("button", { type: "button", on: { click: () => (line.remove(), open()) } }, "Show"),
    make("button", { type: "button", "aria-label": "Dismiss", on: { click: () => line.remove() } }, "✕"),
  );
  find("#notices").prepend(line);
}

export const clearNotices = () => find("#notices").replaceChildren();
