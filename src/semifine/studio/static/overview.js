// The overview page: accuracy, progress, and the map and clusters of the classes.

import { addressOf, openAddress } from "./address.js";
import { ANSWERS } from "./answers.js";
import { get, photo } from "./api.js";
import { classMap, HUES } from "./class_map.js";
import { find, keepFocus, make, percent, plural } from "./dom.js";
import { liveChart, liveText } from "./live.js";
import { classOf, setClasses, state } from "./state.js";

const UNCERTAINTY =
  "Uncertainty is 100 % if the two most probable classes are equally probable and 0 % if the model is certain. " +
  "Each number is the mean over the waiting images.";

let requested = 0;

/** Shows the overview and returns it. A response that arrives after a newer one is not shown. */
export async function showOverview(filter) {
  const request = ++requested;
  const overview = await get("overview");
  if (request !== requested) return null;
  const { accuracy, counts, clusters = [] } = overview;
  setClasses(overview.classes); // the counts of the classes are new, too
  const classes = state.classes.filter(({ retired }) => !retired);
  const known = clusters.map((members) => members.filter((id) => classOf(id) && !classOf(id).retired));
  const groups = known.filter((members) => members.length > 1);
  const singles = known.filter((members) => members.length === 1).flat();
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
    overview.num_suspects > 0 && make("p", {}, make("a", { href: "#review" }, `${plural(overview.num_suspects, "label")} to check`), " contradict confident predictions."),
    ...liveParts(overview.live),
    ...groupParts(overview.groups),
    ...(classes.length ? mapParts(overview) : [make("p", { class: "quiet" }, "There are no classes yet. Open a group, select its photos, and press / to name them.")]),
    groups.length && make("h2", {}, "Clusters of confused classes"),
    groups.length && make("p", { class: "quiet" }, UNCERTAINTY),
    groups.length && make("div", { class: "cards" }, groups.map((members) => clusterCard(members, filter))),
    singles.length && make("h2", {}, "Classes without confusion"),
    singles.length && make("div", { class: "cards" }, make("div", { class: "card wide" }, classGrid(singles))),
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

function liveParts(live) {
  if (!live) return [];
  return [make("h2", {}, "Live model"), make("p", {}, sentence(liveText(live))), ...liveChart(live)];
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

/** Groups of similar photos, before there are classes. */
function groupParts(groups) {
  if (!groups?.length) return [];
  const card = ({ id, size, photos = [] }) =>
    make("a", { class: "class", href: addressOf("grid", { cluster: id }) },
      make("span", { class: "photos" }, photos.slice(0, 4).map((row) => make("img", { src: photo(row), alt: "", loading: "lazy" }))),
      make("span", { class: "name" }, `Group ${id + 1}`), make("span", { class: "quiet" }, plural(size, "photo")));
  return [make("h2", {}, "Groups of similar photos"), make("div", { class: "classes wide" }, groups.map(card))];
}

function mapParts(overview) {
  const open = (id) => openAddress("grid", { class: classOf(id).name });
  return [make("h2", {}, "Class map"), classMap({ ...overview, classes: state.classes }, open, find("#map")?.clientWidth)];
}

function clusterCard(members, filter) {
  const entries = members.map(classOf).filter(Boolean);
  const total = (name) => entries.reduce((sum, entry) => sum + entry[name], 0);
  const waiting = total("waiting");
  const { cluster } = entries[0];
  return make(
    "div",
    { class: "card" },
    make(
      "h3",
      {},
      make("span", { class: `dot hue-${cluster % HUES}` }),
      `${plural(entries.length, "class", "classes")} `,
      make("button", { type: "button", on: { click: () => filter({ cluster: String(cluster) }) } }, "Label"),
      " ",
      make("a", { href: addressOf("grid", { cluster }) }, "Grid"),
      make("span", { class: "quiet" }, ` ${waiting} waiting${waiting ? `, uncertainty ${percent(total("uncertainty") / waiting)}` : ""}`),
    ),
    classGrid(members),
  );
}

const classGrid = (members) => make("div", { class: "classes" }, members.map((id) => classOf(id)).filter(Boolean).map(classLink));

const classLink = (entry) =>
  make(
    "a",
    { class: "class", href: addressOf("grid", { class: entry.name }), title: `Photos that are predicted as ${entry.name}` },
    make("span", { class: "photos" }, (entry.photos ?? []).slice(0, 2).map((row) => make("img", { src: photo(row), alt: "", loading: "lazy" }))),
    make("span", { class: "name" }, entry.name),
    make("span", { class: "quiet" }, `${entry.labeled + entry.new_labels} labeled${entry.new_labels ? ` (${entry.new_labels} new)` : ""}`),
  );
