// The dialog that searches all classes.

import { closeOnOutsideClick, find, make, openDialog, plural } from "./dom.js";

const MAX_SHOWN = 50;

// Unicode does not decompose these letters. studio/queue.py has the same table.
const ASCII_LETTERS = { ł: "l", ø: "o", đ: "d", ħ: "h", æ: "ae", œ: "oe", ß: "ss" };

/** Lower case without accents. */
export const casefold = (text) =>
  text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase().replace(/[łøđħæœß]/g, (letter) => ASCII_LETTERS[letter]);

/** Returns the name of the selected class, or null if the dialog is canceled. */
export async function searchClass(names) {
  const dialog = find("#class-dialog");
  const input = find("input", dialog);
  const list = find("ul", dialog);
  const classes = names.map((name) => ({ name, folded: casefold(name) }));
  let found = [];
  let active = 0;
  let selected = null;

  const select = (name) => {
    selected = name;
    dialog.close();
  };
  const option = ({ name }, index) =>
    make(
      "li",
      { id: `class-${index}`, role: "option", "aria-selected": String(index === active), on: { click: () => select(name) } },
      name,
    );
  const render = () => {
    const shown = found.slice(0, MAX_SHOWN);
    active = Math.max(0, Math.min(active, shown.length - 1));
    list.replaceChildren(...shown.map(option));
    input.setAttribute("aria-activedescendant", shown.length ? `class-${active}` : "");
    find("[aria-selected=true]", list)?.scrollIntoView({ block: "nearest" });
  };
  const search = () => {
    const text = casefold(input.value.trim());
    found = classes.filter(({ folded }) => folded.includes(text));
    find("#class-rest").textContent = remainingText(found.length);
    active = 0;
    render();
  };
  input.value = "";
  input.oninput = search;
  input.onkeydown = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) active += step;
    else if (event.key === "Enter" && !event.isComposing) {
      if (found.length) select(found[active].name);
    } else return;
    event.preventDefault();
    render();
  };
  closeOnOutsideClick(dialog);
  const closed = openDialog(dialog);
  search();
  await closed;
  return selected;
}

function remainingText(count) {
  if (!count) return "No matching class.";
  return count > MAX_SHOWN ? `${plural(count - MAX_SHOWN, "more class", "more classes")}. Type to narrow the list.` : "";
}
