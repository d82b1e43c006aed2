// Tells a person what others did to their answers, until they wave it away.

import { find, make } from "./dom.js";
import { person } from "./person.js";
import { rivalsOf, saying, sentence } from "./replacing.js";

/** What a standing says about the person's own answer by events after a number; null where nothing. */
export function newsOf({ verdicts, replaced }, after) {
  const gone = replaced.find((old) => old.person === person() && old.by.number > after);
  if (gone) return [make("b", {}, gone.by.person), ` replaced your answer ${saying(gone)} by `, make("i", {}, saying(gone.by))];
  const mine = verdicts.find((verdict) => verdict.person === person());
  const rival = mine && rivalsOf(mine, verdicts).find(({ number }) => number > Math.max(after, mine.number));
  return rival ? [sentence(rival), `, you said ${saying(mine)}: a conflict`] : null;
}

export function tell(id, words, look) {
  find(`#news [data-id="${id}"]`)?.remove(); // what is newer holds
  const line = make(
    "li",
    { "data-id": id },
    make("span", {}, words),
    make("button", { type: "button", on: { click: () => (line.remove(), look()) } }, "Look"),
    make("button", { type: "button", "aria-label": "Dismiss", on: { click: () => line.remove() } }, "✕"),
  );
  find("#news").prepend(line);
}

export const forgetNews = () => find("#news").replaceChildren();
