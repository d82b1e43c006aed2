// The review page: conflicts, suspect labels, the agreement of people, and the log of all answers.

import { addressOf, openAddress } from "./address.js";
import { ANSWERS } from "./answers.js";
import { get, photo } from "./api.js";
import { find, keepFocus, make, percent, plural } from "./dom.js";

const LOG_LENGTH = 50;
const MIN_IMAGES = 20; // for fewer common images, agreement says little
const KINDS = { label: "label", ...Object.fromEntries(ANSWERS.map(({ kind, name }) => [kind, name])) };

export class ReviewView {
  #seen = null; // last event that the page includes
  #person = ""; // whose events the log shows

  /** @param openImage Opens an image on the label page. */
  constructor(openImage) {
    this.openImage = openImage;
    find("#log-person").onchange = ({ target }) => openAddress("review", { person: target.value });
  }

  async show({ person = "" } = {}) {
    this.#person = person;
    const [review, log] = await Promise.all([get("review"), this.#fetchLog()]);
    const page = find("#review-parts");
    keepFocus(page, () => page.replaceChildren(...this.#conflicts(review.conflicts), ...agreementParts(review.agreement), ...suspectParts(review)));
    this.#setPeople(review.people ?? [...new Set(log.events.map((event) => event.person))]);
    showEvents(log, (after) => this.#more(after), true);
  }

  /** Loads the page again after new events. */
  async follow(last) {
    const isNew = this.#seen !== null && this.#seen !== last;
    this.#seen = last;
    if (isNew) await this.show({ person: this.#person });
  }

  #fetchLog(after = null) {
    return get("log", { ...(this.#person && { person: this.#person }), ...(after && { after }), count: LOG_LENGTH });
  }

  async #more(after) {
    showEvents(await this.#fetchLog(after), (next) => this.#more(next), false);
  }

  #setPeople(people) {
    const select = find("#log-person");
    const all = [...new Set([...people, ...[...select.options].map(({ value }) => value), this.#person])].filter(Boolean).sort();
    select.replaceChildren(make("option", { value: "" }, "everybody"), ...all.map((name) => make("option", { value: name }, name)));
    select.value = this.#person;
  }

  #conflicts(conflicts) {
    const title = make("h2", {}, "Conflicts");
    if (!conflicts.length) return [title, make("p", { class: "quiet" }, "None. A photo that two people answer differently appears here until they agree.")];
    const tile = (entry) =>
      make("li", {}, make("button", { type: "button", on: { click: () => this.openImage(entry.id) } },
        make("img", { src: photo(entry.row), alt: "", loading: "lazy" }), make("span", { class: "quiet" }, entry.path ?? `photo ${entry.id}`)));
    return [
      title,
      make("p", {}, `${plural(conflicts.length, "photo")} with different answers. `, make("a", { href: addressOf("label", { state: "conflict" }) }, "Settle them one by one")),
      make("ul", { class: "strip" }, conflicts.slice(0, 60).map(tile)),
    ];
  }
}

function agreementParts({ alpha = null, images = 0, people = 0, pairs = [] } = {}) {
  const title = make("h2", {}, "Agreement");
  if (alpha === null || !images)
    return [title, make("p", { class: "quiet" }, "No photo has answers of two people yet. Agreement is measured on photos that several people answer, for example while they settle conflicts.")];
  const few = images < MIN_IMAGES ? ` With ${plural(images, "photo")}, the value is uncertain.` : "";
  const rows = pairs.map(({ a, b, kappa, images: common }) =>
    make("tr", {}, make("td", {}, a), make("td", {}, b), make("td", { class: "number" }, kappa === null ? "–" : kappa.toFixed(2)), make("td", { class: "number" }, String(common))));
  return [
    title,
    make("p", {}, make("b", { class: "value" }, alpha.toFixed(2)), ` Krippendorff's alpha of ${plural(people, "person", "people")} on ${plural(images, "photo")}: ${alphaText(alpha)}.${few}`),
    rows.length && make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Agreement of pairs" }, make("table", { class: "narrow" },
      make("thead", {}, make("tr", {}, ["Person", "Person", "Cohen's kappa", "Photos"].map((name, column) => make("th", { scope: "col", class: column > 1 && "number" }, name)))),
      make("tbody", {}, rows))),
  ].filter(Boolean);
}

/** Krippendorff's thresholds. 1 is full agreement, 0 is chance. */
function alphaText(alpha) {
  if (alpha >= 0.8) return "reliable";
  return alpha >= 0.667 ? "good enough for tentative conclusions" : "low: agree on how to tell the classes apart";
}

/** Labeled photos whose label looks wrong. */
function suspectParts({ suspects = [], num_suspects: count = suspects.length }) {
  const title = make("h2", {}, "Labels to check");
  if (!suspects.length) return [title, make("p", { class: "quiet" }, "None. A label appears here if it contradicts a confident prediction of the cross-validated model.")];
  const hidden = count - suspects.length;
  return [
    title,
    make("p", { class: "quiet" },
      `${plural(count, "label")} ${count === 1 ? "contradicts" : "contradict"} confident predictions of the cross-validated model, the most suspicious first. ` +
      "These are wrong labels, or errors of the model. To correct a label of the data set, move the file to the folder of its class, or edit the table, and train again."),
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

function showEvents({ events, next }, more, isFirst) {
  const row = ({ number, time, person, path, kind, class: className }) =>
    make("tr", { "data-number": number },
      make("td", {}, make("time", { datetime: time }, localTime(time))), make("td", {}, person),
      make("td", {}, className ?? ""), make("td", {}, KINDS[kind] ?? kind.replaceAll("_", " ")), make("td", { class: "path" }, path));
  const body = find("#log tbody");
  if (isFirst) body.replaceChildren();
  body.append(...events.map(row));
  find("#log").hidden = !body.children.length;
  find("#log-empty").hidden = body.children.length > 0;
  const button = find("#log-more");
  button.hidden = next === null || next === undefined;
  button.onclick = () => more(next);
}

function localTime(time) {
  const date = new Date(time);
  return Number.isNaN(date.getTime()) ? String(time) : date.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
}
