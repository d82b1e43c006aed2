// The dialog that searches all classes, and creates new ones.

import { post } from "./api.js";
import { closeOnOutsideClick, find, make, openDialog, plural } from "./dom.js";
import { person } from "./people.js";
import { setClasses } from "./state.js";

const MAX_SHOWN = 50;

// Unicode does not decompose these letters. studio/queue.py has the same table.
const ASCII_LETTERS = { ł: "l", ø: "o", đ: "d", ħ: "h", æ: "ae", œ: "oe", ß: "ss" };

/** Lower case without accents. */
export const casefold = (text) =>
  text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase().replace(/[łøđħæœß]/g, (letter) => ASCII_LETTERS[letter]);

/** Creates a class. */
export async function createClass(name) {
  const { classes } = await post("classes", { person: person(), action: "create", name });
  setClasses(classes);
}

/**
 * Returns the name of the selected class, or null if the dialog is canceled.
 *
 * If `creates`, the list offers to create a class with the typed name. The caller creates it.
 */
export async function searchClass(names, { creates = false, title = "Another class" } = {}) {
  const dialog = find("#class-dialog");
  const input = find("input", dialog);
  const list = find("ul", dialog);
  const classes = names.map((name) => ({ name, folded: casefold(name) }));
  let found = [];
  let active = 0;
  let selected = null;

  const select = ({ name }) => {
    selected = name;
    dialog.close();
  };
  const option = (entry, index) =>
    make(
      "li",
      { id: `class-${index}`, role: "option", class: entry.isNew && "new", "aria-selected": String(index === active), on: { click: () => select(entry) } },
      entry.isNew ? ["Create class ", make("b", {}, entry.name)] : entry.name,
    );
  const render = () => {
    const shown = found.slice(0, MAX_SHOWN);
    if (found.at(-1)?.isNew && shown.at(-1) !== found.at(-1)) shown.push(found.at(-1));
    active = Math.max(0, Math.min(active, shown.length - 1));
    list.replaceChildren(...shown.map(option));
    input.setAttribute("aria-activedescendant", shown.length ? `class-${active}` : "");
    find("[aria-selected=true]", list)?.scrollIntoView({ block: "nearest" });
  };
  const search = () => {
    const typed = input.value.trim().replace(/\s+/g, " ");
    const text = casefold(typed);
    found = classes.filter(({ folded }) => folded.includes(text));
    find("#class-rest").textContent = remainingText(found.length, names.length, creates);
    if (creates && typed && !names.includes(typed)) found.push({ name: typed, isNew: true });
    active = 0;
    render();
  };
  find("#class-title").textContent = title;
  input.value = "";
  input.oninput = search;
  input.onkeydown = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) active += step;
    else if (event.key === "Enter" && !event.isComposing) {
      if (found.length) select(found[Math.min(active, found.length - 1)]);
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

function remainingText(count, all, creates) {
  if (!all && creates) return "There are no classes yet. Type a name to create the first one.";
  if (!count) return "No matching class.";
  return count > MAX_SHOWN ? `${plural(count - MAX_SHOWN, "more class", "more classes")}. Type to narrow the list.` : "";
}
