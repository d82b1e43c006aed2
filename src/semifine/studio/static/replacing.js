// When an answer differs from what somebody else said, the person says which holds.

import { ask, find, leaveFromOutside, make } from "./dom.js";
import { keyOf } from "./keyboard.js";
import { person } from "./person.js";

const SAYING = { none_of_these: "none of these", unsure: "unsure", skip: "skip" };

export const saying = ({ kind, class: name }) => name ?? SAYING[kind];

/** Those of the verdicts that an answer would replace: of other people, and different. */
export const rivalsOf = (answer, verdicts) =>
  verdicts.filter((other) => other.person !== person() && (other.kind !== answer.kind || other.class !== answer.class));

export const sentence = (verdict) =>
  make("span", { class: "said" }, make("b", {}, verdict.person), " says ", make("i", {}, saying(verdict)));

/** "both", "replace", or "" to leave everything as it is. */
export function askWhichHolds(rivals, answer) {
  const dialog = find("#replace-dialog");
  find("p", dialog).replaceChildren(
    ...rivals.flatMap((verdict) => [sentence(verdict), make("br")]),
    make("b", {}, "You"), " say ", make("i", {}, saying(answer)),
  );
  dialog.onkeydown = (event) => find(`[data-key="${CSS.escape(keyOf(event))}"]`, dialog)?.click();
  leaveFromOutside(dialog);
  return ask(dialog);
}
