// Keys of the desk; they rest while somebody types or a dialog is open.

export function listen(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.matches("input:not([type=checkbox]), select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const key = keyOf(event);
    if (event.ctrlKey && key !== "z") return;
    const name = event.ctrlKey ? "undo" : nameOf(key);
    if (!name || !actions[name]) return;
    event.preventDefault();
    if (!event.repeat) actions[name](Number(key) - 1);
  });
}

const KEYS = {
  0: "none_of_these",
  n: "none_of_these",
  u: "unsure",
  s: "skip",
  Backspace: "undo",
  z: "zoom",
  a: "alike",
  h: "help",
  "/": "other",
  ArrowRight: "next",
  ArrowLeft: "back",
};

const nameOf = (key) => KEYS[key] ?? (/^[1-9]$/.test(key) ? "choose" : null);

/** What is written on a key; on layouts that lack it there, what an English keyboard has in its place. */
export function keyOf({ key, code, shiftKey }) {
  const written = key.length === 1 ? key.toLowerCase() : key;
  if (nameOf(written)) return written;
  const [, digit, letter] = /^(?:Digit(\d)|Key([A-Z]))$/.exec(code) ?? [];
  if (digit && !shiftKey) return digit; // French and Czech digits need Shift
  const isForeign = key.length === 1 && key > "\x7f"; // Cyrillic or Greek; a Latin letter means itself
  return letter && isForeign ? letter.toLowerCase() : written;
}
