// Search among all classes.

import { find, leaveFromOutside, make } from "./dom.js";

const MOST = 50;

export function chooseClass(names) {
  const dialog = find("#class-dialog");
  const input = find("input", dialog);
  const list = find("ul", dialog);
  let place = 0;

  return new Promise((resolve) => {
    let chosen = null;
    const take = (name) => {
      chosen = name;
      dialog.close();
    };
    const fits = () => names.filter((name) => name.toLowerCase().includes(input.value.trim().toLowerCase())).slice(0, MOST);
    const render = () => {
      const shown = fits();
      place = Math.max(0, Math.min(place, shown.length - 1));
      list.replaceChildren(
        ...shown.map((name, here) =>
          make("li", {}, make("button", { type: "button", class: here === place && "here", on: { click: () => take(name) } }, name)),
        ),
      );
      find(".here", list)?.scrollIntoView({ block: "nearest" });
    };
    input.value = "";
    input.oninput = () => {
      place = 0;
      render();
    };
    input.onkeydown = (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) place += step;
      else if (event.key === "Enter") {
        const name = fits()[place];
        if (name) take(name);
      } else return;
      event.preventDefault();
      render();
    };
    leaveFromOutside(dialog);
    dialog.onclose = () => resolve(chosen);
    dialog.showModal();
    render();
  });
}
