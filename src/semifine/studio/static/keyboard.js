// Keyboard shortcuts of the label page and the grid page. They are inactive in text fields and dialogs.

import { ANSWERS } from "./answers.js";

/** Calls the actions of the page that is shown: `currentActions` returns them by name. */
export function listen(currentActions) {
  document.addEventListener("keydown", (event) => {
    if (event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.matches("input:not([type=checkbox]), select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const key = keyOf(event);
    if (event.ctrlKey && key !== "z") return;
    const name = event.ctrlKey ? "undo" : actionName(key);
    const actions = currentActions();
    if (!name || !actions[name]) return;
    if (key === "Enter" && event.target.matches("a, button, summary, input")) return; // it presses the button
    event.preventDefault();
    if (!event.repeat) actions[name](Number(key) - 1);
  });
}

const KEYS = {
  ...Object.fromEntries(ANSWERS.flatMap(({ kind, keys }) => keys.map((key) => [key, kind]))),
  Backspace: "undo",
  z: "zoom",
  a: "look_alikes",
  h: "help",
  c: "confirm",
  l: "like",
  o: "outliers",
  Enter: "first",
  Escape: "clear",
  "/": "other",
  ArrowRight: "next",
  ArrowLeft: "back",
};

const actionName = (key) => KEYS[key] ?? (/^[1-9]$/.test(key) ? "choose" : null);

/** The character of a key. On other keyboard layouts, the character at the same position of an English keyboard. */
export function keyOf({ key, code, shiftKey }) {
  const character = key.length === 1 ? key.toLowerCase() : key;
  if (actionName(character)) return character;
  const [, digit, letter] = /^(?:Digit(\d)|Key([A-Z]))$/.exec(code) ?? [];
  if (digit && !shiftKey) return digit; // French and Czech digits need Shift
  const isForeign = key.length === 1 && key > "\x7f"; // such as Cyrillic or Greek; Latin letters stay as they are
  return letter && isForeign ? letter.toLowerCase() : character;
}
