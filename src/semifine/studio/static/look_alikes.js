// Images that are nearly the same as the one that is asked about: one answer can be for all of them.

import { photo } from "./api.js";
import { find, make, plural } from "./dom.js";

export function showLookAlikes(alike) {
  const place = find("#look-alikes");
  if (!alike.length) return place.replaceChildren();
  const list = make("ul", {}, alike.map(item));
  const toggle = (event) => list.classList.toggle("on", event.target.checked);
  const also = make("input", { type: "checkbox", name: "also", on: { change: toggle } });
  const title = make("label", {}, also, make("kbd", {}, "A"), ` Answer for ${plural(alike.length, "look-alike")}, too`);
  place.replaceChildren(title, list);
}

const item = ({ id, row }) =>
  make(
    "li",
    {},
    make(
      "label",
      {},
      make("img", { src: photo(row), alt: `Look-alike ${id}` }),
      make("input", { type: "checkbox", value: id, checked: true, "aria-label": `Include look-alike ${id}` }),
    ),
  );

export const toggleLookAlikes = () => find("#look-alikes input[name=also]")?.click();

/** Those that the next answer is for, too. */
export function tickedOf(alike) {
  if (!find("#look-alikes input[name=also]")?.checked) return [];
  const ticked = new Set([...document.querySelectorAll("#look-alikes li input:checked")].map((box) => Number(box.value)));
  return alike.filter(({ id }) => ticked.has(id));
}
