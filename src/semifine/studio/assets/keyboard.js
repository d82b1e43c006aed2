// Keys of the desk; they rest while somebody types or a dialog is open.

export function listen(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.matches("input:not([type=checkbox]), select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (event.ctrlKey && key !== "z") return;
    const name = event.ctrlKey ? "undo" : KEYS[key] ?? (/^[1-9]$/.test(key) ? "choose" : null);
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
