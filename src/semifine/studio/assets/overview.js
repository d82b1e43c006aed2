// What is learnt, what is confused, and how far people have come.

import { get, photo } from "./api.js";
import { draw, find, make, plural } from "./dom.js";

const HUES = 8;

export async function showOverview(filter) {
  const all = await get("overview");
  const { classes, clusters, counts } = all;
  const groups = clusters.filter((members) => members.length > 1);
  const alone = clusters.filter((members) => members.length === 1).flat();
  const parts = [
    make(
      "ul",
      { class: "tiles" },
      tile(all.accuracy ? `${all.accuracy.top1.toFixed(1)} %` : "–", all.accuracy ? `right on ${all.accuracy.split} images` : "no test images"),
      tile(counts.waiting, "images waiting"),
      tile(counts.labelled, "labelled by people"),
      tile(counts.conflict, "in conflict"),
      tile(counts.unsure + counts.none_of_these, "unsure or none of these"),
    ),
    people(all.people),
    make("h2", {}, "Classes that look alike lie close, those that are confused are joined"),
    map(all, filter),
    make("h2", {}, "Clusters of classes that are confused"),
    make("div", { class: "cards" }, groups.map((members) => card(members, classes, filter))),
    alone.length && make("h2", {}, "Confused with none"),
    alone.length && make("div", { class: "cards" }, make("div", { class: "card" }, classGrid(alone, classes, filter))),
  ];
  find("#overview").replaceChildren(...parts.filter(Boolean));
}

const tile = (value, name) => make("li", {}, make("b", {}, String(value)), make("span", {}, name));

function people(given) {
  const names = Object.entries(given);
  if (!names.length) return null;
  return make("p", {}, "Labels by ", names.map(([name, count]) => `${name} (${count})`).join(", "), ". ",
    make("a", { href: "labels.csv", download: "" }, "Save as CSV"));
}

function card(members, classes, filter) {
  const waiting = members.reduce((sum, c) => sum + classes[c].doubt, 0);
  const cluster = classes[members[0]].cluster;
  return make(
    "div",
    { class: "card" },
    make(
      "h3",
      {},
      make("span", { class: `dot hue-${cluster % HUES}` }),
      `${plural(members.length, "class", "classes")} `,
      make("button", { type: "button", on: { click: () => filter({ cluster }) } }, "Label these"),
      make("span", { class: "quiet" }, ` doubt ${waiting.toFixed(1)}`),
    ),
    classGrid(members, classes, filter),
  );
}

const classGrid = (members, classes, filter) =>
  make("div", { class: "classes" }, members.map((c) => classView(c, classes[c], filter)));

const classView = (id, of, filter) =>
  make(
    "button",
    { type: "button", class: "class", on: { click: () => filter({ class: id }) }, title: `Label images that look like ${of.name}` },
    make("span", { class: "photos" }, of.photos.slice(0, 2).map((row) => make("img", { src: photo(row), alt: "", loading: "lazy" }))),
    make("span", { class: "name" }, of.name),
    make("span", { class: "quiet" }, `${of.labelled + of.given} labelled${of.given ? ` (${of.given} new)` : ""}`),
  );

/** Whether a name can be written without running into one that is written already; letters are about 0.8 wide. */
function hasRoom(written, { name, position }, x, y) {
  const width = 0.8 * name.length;
  const left = x - { start: 0, middle: width / 2, end: width }[anchor(position[0])];
  const free = written.every((other) => Math.abs(other.y - y) > 2 || left > other.right || left + width < other.left);
  if (free) written.push({ left, right: left + width, y });
  return free;
}

const anchor = (x) => (x < 0.1 ? "start" : x > 0.9 ? "end" : "middle");

function map({ classes, pairs }, filter) {
  const [width, height, edge] = [100, 46, 4];
  const at = ({ position: [x, y] }) => [edge + x * (width - 2 * edge), edge + y * (height - 2 * edge)];
  const most = Math.max(1, ...classes.map(({ doubt }) => doubt));
  const strongest = Math.max(1, ...pairs.map(([, , count]) => count));
  const lines = pairs.map(([first, second, count]) => {
    const [[x1, y1], [x2, y2]] = [at(classes[first]), at(classes[second])];
    return draw("line", { x1, y1, x2, y2, "stroke-width": 0.15 + (0.6 * count) / strongest });
  });
  const [written, names] = [[], []];
  const dots = classes.map((of, id) => {
    const [cx, cy] = at(of);
    const r = 0.6 + 0.9 * Math.sqrt(of.doubt / most);
    if (hasRoom(written, of, cx, cy))
      names.push(draw("text", { x: cx, y: cy - r - 0.5, "text-anchor": anchor(of.position[0]) }, of.name));
    const pick = () => filter({ class: id });
    return draw(
      "a",
      { href: "#label", "aria-label": of.name, on: { click: pick } },
      draw("title", {}, `${of.name}: ${of.predicted} images, doubt ${of.doubt.toFixed(1)}`),
      draw("circle", { cx, cy, r, class: `hue-${of.cluster % HUES}` }),
    );
  });
  return make("figure", { id: "map" }, draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Map of the classes" }, lines, dots, names));
}
