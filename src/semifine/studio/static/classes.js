// Search among all classes.

import { ask, find, leaveFromOutside, make, plural } from "./dom.js";
import { plain } from "./folding.js";

const MOST = 50;

export async function chooseClass(names) {
  const dialog = find("#class-dialog");
  const input = find("input", dialog);
  const list = find("ul", dialog);
  const classes = names.map((name) => ({ name, folded: plain(name) }));
  let found = [];
  let place = 0;
  let chosen = null;

  const take = (name) => {
    chosen = name;
    dialog.close();
  };
  const option = ({ name }, here) =>
    make(
      "li",
      { id: `class-${here}`, role: "option", "aria-selected": String(here === place), on: { click: () => take(name) } },
      name,
    );
  const render = () => {
    const shown = found.slice(0, MOST);
    place = Math.max(0, Math.min(place, shown.length - 1));
    list.replaceChildren(...shown.map(option));
    input.setAttribute("aria-activedescendant", shown.length ? `class-${place}` : "");
    find("[aria-selected=true]", list)?.scrollIntoView({ block: "nearest" });
  };
  const search = () => {
    const part = plain(input.value.trim());
    found = classes.filter(({ folded }) => folded.includes(part));
    find("#class-rest").textContent = restOf(found.length);
    place = 0;
    render();
  };
  input.value = "";
  input.oninput = search;
  input.onkeydown = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) place += step;
    else if (event.key === "Enter" && !event.isComposing) {
      if (found.length) take(found[place].name);
    } else return;
    event.preventDefault();
    render();
  };
  leaveFromOutside(dialog);
  const closed = ask(dialog);
  search();
  await closed;
  return chosen;
}

function restOf(count) {
  if (!count) return "No class has this in its name.";
  return count > MOST ? `${plural(count - MOST, "more class", "more classes")}: type to narrow.` : "";
}
