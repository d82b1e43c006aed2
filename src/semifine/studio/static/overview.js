// The overview page: accuracy, progress, and the map and clusters of the classes.

import { ANSWERS } from "./answers.js";
import { get, photo } from "./api.js";
import { classMap, HUES } from "./class_map.js";
import { find, keepFocus, make, percent, plural } from "./dom.js";

const UNCERTAINTY =
  "Uncertainty is 100 % if the two most probable classes are equally probable and 0 % if the model is certain. " +
  "Each number is the mean over the waiting images.";

let requested = 0;

/** Shows the overview and returns it. A response that arrives after a newer one is not shown. */
export async function showOverview(filter) {
  const request = ++requested;
  const overview = await get("overview");
  if (request !== requested) return null;
  const { accuracy, classes, clusters, counts } = overview;
  const groups = clusters.filter((members) => members.length > 1);
  const singles = clusters.filter((members) => members.length === 1).flat();
  const others = ANSWERS.filter((answer) => answer.isState);
  const parts = [
    make(
      "ul",
      { class: "tiles" },
      tile(accuracy ? `${accuracy.top1.toFixed(1)} %` : "–", accuracy ? `top-1, ${accuracy.split} ${accuracy.text.slice(accuracy.text.indexOf("("))}` : "no test images"),
      tile(counts.waiting, "images waiting"),
      tile(counts.labeled, "labeled by people"),
      tile(counts.conflict, "in conflict"),
      tile(others.reduce((sum, { kind }) => sum + counts[kind], 0), others.map(({ name }) => name).join(" or ")),
    ),
    peopleLine(overview.people),
    ...suspectParts(overview),
    make("h2", {}, "Class map"),
    classMap(overview, filter, find("#map")?.clientWidth),
    make("h2", {}, "Clusters of confused classes"),
    make("p", { class: "quiet" }, UNCERTAINTY),
    make("div", { class: "cards" }, groups.map((members) => clusterCard(members, classes, filter))),
    singles.length && make("h2", {}, "Classes without confusion"),
    singles.length && make("div", { class: "cards" }, make("div", { class: "card" }, classGrid(singles, classes, filter))),
  ];
  const page = find("#overview");
  keepFocus(page, () => page.replaceChildren(...parts.filter(Boolean)));
  return overview;
}

const tile = (value, name) => make("li", {}, make("b", {}, String(value)), make("span", {}, name));

function peopleLine(verdicts) {
  const names = Object.entries(verdicts);
  if (!names.length) return null;
  return make("p", {}, "Labels by ", names.map(([name, count]) => `${name} (${count})`).join(", "), ". ",
    make("a", { href: "labels.csv", download: "" }, "Download as CSV"));
}

/** Labeled photos whose label looks wrong, in a list that opens on request. */
function suspectParts({ suspects, num_suspects: count }) {
  if (!count) return [];
  const hidden = count - suspects.length;
  return [
    make("h2", {}, "Labels to check"),
    make("p", { class: "quiet" },
      `${plural(count, "label")} of the training photos ${count === 1 ? "contradicts" : "contradict"} confident predictions of the cross-validated probe, the most suspicious first. ` +
      "These are wrong labels, or errors of the probe. To correct a label, move the file to the folder of its class, or edit the table, and train again."),
    make("details", { id: "suspects", open: count <= 12 },
      make("summary", {}, hidden > 0 ? `Show the first ${suspects.length}` : "Show the photos"),
      make("div", { class: "cards" }, suspects.map(suspectCard))),
  ];
}

const suspectCard = ({ row, path, label, prediction, label_probability: ofLabel, prediction_probability: ofPrediction }) =>
  make("div", { class: "card suspect" },
    make("a", { href: photo(row, "large"), target: "_blank", rel: "noreferrer" },
      make("img", { src: photo(row), alt: `Photo labeled ${label}`, loading: "lazy" })),
    make("div", {},
      make("p", {}, "labeled ", make("b", {}, label), ` (${percent(ofLabel)})`),
      make("p", {}, "predicted ", make("b", {}, prediction), ` (${percent(ofPrediction)})`),
      make("p", { class: "quiet path" }, path)));

function clusterCard(members, classes, filter) {
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
      make("button", { type: "button", on: { click: () => filter({ cluster }) } }, "Label"),
      make("span", { class: "quiet" }, ` ${waiting} waiting${waiting ? `, uncertainty ${percent(total("uncertainty") / waiting)}` : ""}`),
    ),
    classGrid(members, classes, filter),
  );
}

const classGrid = (members, classes, filter) =>
  make("div", { class: "classes" }, members.map((c) => classButton(c, classes[c], filter)));

const classButton = (id, entry, filter) =>
  make(
    "button",
    { type: "button", class: "class", on: { click: () => filter({ class: id }) }, title: `Label images that are predicted as ${entry.name}` },
    make("span", { class: "photos" }, entry.photos.slice(0, 2).map((row) => make("img", { src: photo(row), alt: "", loading: "lazy" }))),
    make("span", { class: "name" }, entry.name),
    make("span", { class: "quiet" }, `${entry.labeled + entry.new_labels} labeled${entry.new_labels ? ` (${entry.new_labels} new)` : ""}`),
  );
