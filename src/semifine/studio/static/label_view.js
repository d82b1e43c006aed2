// The label page: one image, its candidates and its look-alikes.

import { answerName, isVerdict } from "./answers.js";
import { get, photo, post } from "./api.js";
import { createClass } from "./class_search.js";
import { find, keepFocus, make, percent, plural, toast } from "./dom.js";
import { askHowToResolve, conflictingVerdicts, person, removeResolved, verdictText } from "./people.js";
import { classNamed } from "./state.js";

export class LabelView {
  image = null; // the image that the page shows
  #pending = null;

  constructor(queue) {
    this.queue = queue;
  }

  // Actions run one at a time, so that an answer always applies to the image that the page shows.

  /** Runs an action after the pending one. */
  async #enqueue(action) {
    while (this.#pending) await this.#pending;
    this.#pending = action()
      .catch((error) => toast(error.message, true))
      .finally(() => (this.#pending = null));
    await this.#pending;
  }

  /** Runs an action unless another one is pending: a fast key press would answer an image that is about to be replaced. */
  async #runIfIdle(action) {
    if (this.#pending) return;
    const isCurrent = this.image?.id === this.queue.current; // false if the last action failed halfway
    await this.#enqueue(isCurrent ? action : () => this.#show());
  }

  load = () =>
    this.#enqueue(async () => {
      await this.queue.load();
      await this.#show();
    });

  /** Loads what is not shown yet again; the photo on the page stays, and keys keep working meanwhile. */
  refresh = async () => {
    await this.queue.reloadRest();
    if (!this.image) return this.queue.current === undefined ? null : this.#enqueue(() => this.#show());
    if (this.image.id === this.queue.current) find("#total").textContent = plural(this.queue.length, "image");
    this.queue.prefetch();
  };

  goTo = (id) =>
    this.#enqueue(async () => {
      this.queue.moveToFront(id);
      await this.#show();
    });

  answer = (kind, className = null) => this.#runIfIdle(() => this.#answer({ kind, class: className }));

  /** Answers with the class that `search` returns. */
  answerFrom = (search) =>
    this.#runIfIdle(async () => {
      const name = this.image && (await search());
      if (!name) return;
      if (!classNamed(name)) await createClass(name);
      await this.#answer({ kind: "label", class: name });
    });

  choose(index) {
    const candidate = this.image?.candidates[index];
    if (candidate) this.answer("label", candidate.name);
  }

  next = () => this.#runIfIdle(() => this.#next(false));

  back = () =>
    this.#runIfIdle(async () => {
      this.queue.back();
      await this.#show();
    });

  /** Waits for the pending answer, which is the one to undo. */
  undo = () =>
    this.#enqueue(async () => {
      const { ids, classes } = await post("undo", { person: person() });
      if (!ids.length && !classes) return toast("There is nothing to undo.");
      toast(`Undone${ids.length > 1 ? ` for ${ids.length} images` : ""}`);
      if (!ids.length) return; // a change of the classes
      this.queue.reopen(ids);
      this.queue.moveToFront(ids[0]);
      await this.#show();
    });

  /** Shows the new answers of other people. */
  update(label) {
    if (!this.image) return;
    Object.assign(this.image, label);
    this.#renderBanner();
  }

  async #answer(answer) {
    if (!this.image) return;
    const { id, seen, verdicts, look_alikes } = this.image; // verdicts that arrive during the dialog are not replaced
    const others = isVerdict(answer.kind) ? conflictingVerdicts(answer, verdicts) : [];
    const choice = others.length ? await askHowToResolve(others, answer) : "replace";
    if (!choice) return;
    const lookAlikes = answer.kind === "skip" ? [] : selectedLookAlikes(look_alikes);
    const images = [{ id, seen }, ...lookAlikes].map(({ id, seen }) => ({ id, seen }));
    const labels = await this.#send({ images, keep_both: choice === "both", ...answer });
    const conflicts = images.filter((image) => labels[image.id].state === "conflict");
    for (const image of images) removeResolved(image.id, labels[image.id].state);
    this.queue.remove(lookAlikes.map((other) => other.id));
    if (choice === "replace" && labels[id].state === "conflict") {
      this.update(labels[id]);
      this.queue.forget([id]);
      toast("Conflict: another person gave a different answer.", true);
      return;
    }
    const scope = lookAlikes.length ? ` for ${images.length} images` : "";
    toast(`${answerName(answer)}${scope}${conflicts.length ? `, ${conflicts.length} in conflict` : ""}`);
    await this.#next(true);
  }

  /** Returns the current label of each image. */
  async #send(answer) {
    try {
      return (await post("answer", { run: this.image.run, person: person(), ...answer })).images;
    } catch (error) {
      this.queue.forget([this.image.id]); // the page may not show the latest answers
      await this.#show().catch(() => {});
      throw new Error(`Not saved. ${error.message}`);
    }
  }

  async #next(isAnswered) {
    await this.queue.advance(isAnswered);
    await this.#show();
  }

  async #show() {
    const id = this.queue.current;
    const image = id === undefined ? null : await this.queue.details(id);
    const isOther = image?.id !== this.image?.id;
    this.image = image;
    find("#image-view").hidden = !image;
    find("#empty").hidden = Boolean(image);
    find("#total").textContent = image ? plural(this.queue.length, "image") : "";
    if (!image) return showEmptyQueue(this.queue);
    this.#render();
    if (isOther && !find("#label").hidden) scrollTo(0, 0); // the candidates may be far below the photo
    this.queue.prefetch();
  }

  #render() {
    const { image } = this;
    // A new element, because some browsers show the previous photo in an old one until the new photo is loaded.
    const missing = ({ target }) => target.replaceWith(make("span", { class: "quiet" }, "This photo cannot be shown."));
    const shown = make("img", { src: photo(image.row, "large"), alt: "The image to label", on: { error: missing } });
    find("#photo").replaceChildren(shown);
    this.#renderPath();
    const list = find("#candidates");
    list.style.setProperty("--count", image.candidates.length);
    keepFocus(list, () => list.replaceChildren(...image.candidates.map((candidate, index) => this.#candidate(candidate, index))));
    showLookAlikes(image.look_alikes);
    find("#siblings").replaceChildren(...this.#siblings());
    this.#renderBanner();
  }

  /** The path of the image; its date and its place follow as soon as they are known. */
  async #renderPath() {
    const { id, path } = this.image;
    find("#path").textContent = path;
    find("#facts").textContent = "";
    const { date, place } = await get(`metadata/${id}`).catch(() => ({}));
    const facts = [date && date.slice(0, 16).replace("T", " "), place && place.map((degrees) => degrees.toFixed(4)).join(", ")].filter(Boolean);
    if (facts.length && this.image?.id === id) find("#facts").textContent = facts.join(" · ");
  }

  /** The other boxes of a photo with several animals. Each box is answered on its own. */
  #siblings() {
    const siblings = this.image.siblings ?? [];
    if (!siblings.length) return [];
    const button = (sibling, number) => {
      const { id, row } = typeof sibling === "object" ? sibling : { id: sibling, row: null };
      const face = row === null ? String(number + 1) : make("img", { src: photo(row), alt: "" });
      return make("button", { type: "button", "aria-label": `Other box ${number + 1} of this photo`, on: { click: () => this.goTo(id) } }, face);
    };
    return [make("span", {}, "Other boxes of this photo"), ...siblings.map(button)];
  }

  #candidate(candidate, index) {
    const examples = candidate.examples.map((row) => make("img", { src: photo(row), alt: "", loading: "lazy" }));
    const button = make(
      "button",
      { type: "button", "aria-keyshortcuts": index + 1, on: { click: () => this.choose(index) } },
      make("kbd", {}, String(index + 1)),
      make(
        "span",
        { class: "about" },
        make("span", { class: "name" }, candidate.name),
        make("span", { class: "bar", vars: { share: candidate.probability }, "aria-hidden": "true" }),
        make("span", { class: "quiet" }, percent(candidate.probability)),
      ),
      make("span", { class: "examples" }, examples),
    );
    return make("li", {}, button);
  }

  #renderBanner() {
    const { verdicts, replaced, passed, state } = this.image;
    const answers = [...verdicts, ...passed.filter(({ kind }) => kind === "unsure")];
    const banner = find("#banner");
    banner.className = state === "conflict" ? "conflict" : answers.length ? "answered" : "";
    if (!answers.length) return banner.replaceChildren();
    const earlier = replaced.map((old) => make("span", { class: "quiet" }, `${old.person} answered ${answerName(old)}, replaced by ${old.by.person}`));
    const next = make("button", { type: "button", on: { click: this.next } }, "→ continue");
    banner.replaceChildren(...answers.map(verdictText), ...earlier, make("span", { class: "hint" }, bannerHint(state, verdicts), next));
  }
}

function bannerHint(state, verdicts) {
  if (state === "conflict") return "Conflict. Answer again to resolve it, or ";
  if (verdicts.some((verdict) => verdict.person === person())) return "Answer again to change it, or ";
  return "Agree or disagree, or ";
}

function showEmptyQueue(queue) {
  find("#empty p").textContent = emptyText(queue);
  find("#empty [data-action=all]").hidden = !queue.isFiltered;
}

function emptyText(queue) {
  if (queue.hasStarted) return queue.isWaiting ? "All images of this queue are labeled. Show all, or open Train to train with the labels." : "That was the last image.";
  if (queue.isFiltered) return `No ${queue.isWaiting ? "waiting " : ""}image matches these filters.`;
  return queue.isWaiting ? "All images are labeled. Open Train to train with the labels, or Review to check them." : "There are no such images.";
}

// Look-alikes: images that are nearly identical to the current one. One answer can apply to all of them.

function showLookAlikes(lookAlikes) {
  const element = find("#look-alikes");
  if (!lookAlikes.length) return element.replaceChildren();
  const list = make("ul", {}, lookAlikes.map(lookAlikeItem));
  const toggle = (event) => list.classList.toggle("on", event.target.checked);
  const checkbox = make("input", { type: "checkbox", name: "also", on: { change: toggle } });
  const title = make("label", {}, checkbox, make("kbd", {}, "A"), ` Also answer for ${plural(lookAlikes.length, "look-alike")}`);
  element.replaceChildren(title, list);
}

const lookAlikeItem = ({ id, row }) =>
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

function selectedLookAlikes(lookAlikes) {
  if (!find("#look-alikes input[name=also]")?.checked) return [];
  const checked = new Set([...document.querySelectorAll("#look-alikes li input:checked")].map((box) => Number(box.value)));
  return lookAlikes.filter(({ id }) => checked.has(id));
}
