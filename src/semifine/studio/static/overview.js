// What is learned, what is confused, and how far people have come.

import { get, photo } from "./api.js";
import { find, keepingFocus, make, percent, plural } from "./dom.js";
import { HUES, map } from "./map.js";

const DOUBT = "Doubt is 100 % where two classes are level and 0 % where one is far ahead: the mean over the images that wait.";

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
      tile(counts.labeled, "labeled by people"),
      tile(counts.conflict, "in conflict"),
      tile(counts.unsure + counts.none_of_these, "unsure or none of these"),
    ),
    people(all.people),
    make("h2", {}, "Classes that look alike lie close, those that are confused are joined"),
    map(all, filter, find("#map")?.clientWidth),
    make("h2", {}, "Clusters of classes that are confused"),
    make("p", { class: "quiet" }, DOUBT),
    make("div", { class: "cards" }, groups.map((members) => card(members, classes, filter))),
    alone.length && make("h2", {}, "Confused with none"),
    alone.length && make("div", { class: "cards" }, make("div", { class: "card" }, classGrid(alone, classes, filter))),
  ];
  const place = find("#overview");
  keepingFocus(place, () => place.replaceChildren(...parts.filter(Boolean)));
}

const tile = (value, name) => make("li", {}, make("b", {}, String(value)), make("span", {}, name));

function people(given) {
  const names = Object.entries(given);
  if (!names.length) return null;
  return make("p", {}, "Labels by ", names.map(([name, count]) => `${name} (${count})`).join(", "), ". ",
    make("a", { href: "labels.csv", download: "" }, "Save as CSV"));
}

function card(members, classes, filter) {
  const total = (name) => members.reduce((sum, c) => sum + classes[c][name], 0);
  const waiting = total("waiting");
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
      make("span", { class: "quiet" }, ` ${waiting} waiting${waiting ? `, doubt ${percent(total("doubt") / waiting)}` : ""}`),
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
    make("span", { class: "quiet" }, `${of.labeled + of.given} labeled${of.given ? ` (${of.given} new)` : ""}`),
  );
