// One image, its candidates, and the answers.

import { photo, post } from "./api.js";
import { find, keepingFocus, make, percent, plural, toast } from "./dom.js";
import { showEmpty } from "./empty.js";
import { showLookAlikes, tickedOf } from "./look_alikes.js";
import { person } from "./person.js";
import { askWhichHolds, rivalsOf, saying, sentence } from "./replacing.js";

const VERDICTS = ["label", "none_of_these"];

export class LabelQueue {
  image = null; // what the page shows of the current image
  #underway = null;

  constructor(queue) {
    this.queue = queue;
  }

  // One thing at a time: what the page shows and what the queue has in front are the same whenever an answer is given.

  /** What the page does by itself waits until it can. */
  async #inTurn(action) {
    while (this.#underway) await this.#underway;
    this.#underway = action()
      .catch((error) => toast(error.message, true))
      .finally(() => (this.#underway = null));
    await this.#underway;
  }

  /** A key that comes while something is under way is left out: it is meant for an image that is about to go. */
  async #atOnce(action) {
    if (this.#underway) return;
    const isInStep = this.image?.id === this.queue.current; // it is not after a step that failed halfway
    await this.#inTurn(isInStep ? action : () => this.#show());
  }

  load = () =>
    this.#inTurn(async () => {
      await this.queue.load();
      await this.#show();
    });

  look = (id) =>
    this.#inTurn(async () => {
      this.queue.show(id);
      await this.#show();
    });

  say = (kind, className = null) => this.#atOnce(() => this.#answer({ kind, class: className }));

  /** A label whose class is asked for first. */
  sayChosen = (choose) =>
    this.#atOnce(async () => {
      const name = this.image && (await choose());
      if (name) await this.#answer({ kind: "label", class: name });
    });

  choose(place) {
    const candidate = this.image?.candidates[place];
    if (candidate) this.say("label", candidate.name);
  }

  next = () => this.#atOnce(() => this.#next(false));

  back = () =>
    this.#atOnce(async () => {
      this.queue.back();
      await this.#show();
    });

  /** It is about the answer before, not about the image that is shown: it waits until that answer is through. */
  undo = () =>
    this.#inTurn(async () => {
      const { ids } = await post("undo", { person: person() });
      if (!ids.length) return toast("There is nothing to take back.");
      toast(`Taken back${ids.length > 1 ? ` for ${ids.length} images` : ""}`);
      this.queue.reopen(ids);
      this.queue.show(ids[0]);
      await this.#show();
    });

  /** What others said meanwhile. */
  update(standing) {
    if (!this.image) return;
    Object.assign(this.image, standing);
    this.#renderBanner();
  }

  async #answer(answer) {
    if (!this.image) return;
    const { id, seen, verdicts, look_alikes } = this.image; // what comes while the person is asked is not replaced
    const rivals = VERDICTS.includes(answer.kind) ? rivalsOf(answer, verdicts) : [];
    const choice = rivals.length ? await askWhichHolds(rivals, answer) : "replace";
    if (!choice) return;
    const others = answer.kind === "skip" ? [] : tickedOf(look_alikes);
    const images = [{ id, seen }, ...others].map(({ id, seen }) => ({ id, seen }));
    const now = await this.#send({ images, beside: choice === "both", ...answer });
    const disputed = images.filter((image) => now[image.id].state === "conflict");
    this.queue.drop(others.map((other) => other.id));
    if (choice === "replace" && now[id].state === "conflict") {
      this.update(now[id]);
      this.queue.forget([id]);
      toast("You and somebody else differ about this image.", true);
      return;
    }
    const scope = others.length ? ` for ${images.length} images` : "";
    toast(`${saying(answer)}${scope}${disputed.length ? `, ${disputed.length} in conflict` : ""}`);
    await this.#next(true);
  }

  /** What holds for each image then. */
  async #send(said) {
    try {
      return (await post("say", { run: this.image.run, person: person(), ...said })).images;
    } catch (error) {
      this.queue.forget([this.image.id]); // perhaps the page shows less than was said by now
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
    const image = id === undefined ? null : await this.queue.detail(id);
    const isOther = image?.id !== this.image?.id;
    this.image = image;
    find("#desk").hidden = !image;
    find("#empty").hidden = Boolean(image);
    find("#total").textContent = image ? plural(this.queue.left, "image") : "";
    if (!image) return showEmpty(this.queue);
    this.#render();
    if (isOther && !find("#label").hidden) scrollTo(0, 0); // the answer may have been far below the photo
    this.queue.prefetch();
  }

  #render() {
    const { image } = this;
    // A new element: in some browsers an old one shows the photo before until this one is there.
    const missing = ({ target }) => target.replaceWith(make("span", { class: "quiet" }, "This photo cannot be shown."));
    const shown = make("img", { src: photo(image.row, "large"), alt: "The image to label", on: { error: missing } });
    find("#photo").replaceChildren(shown);
    find("#path").textContent = image.path;
    const candidates = find("#candidates");
    candidates.style.setProperty("--count", image.candidates.length);
    keepingFocus(candidates, () => candidates.replaceChildren(...image.candidates.map((of, place) => this.#candidate(of, place))));
    showLookAlikes(image.look_alikes);
    this.#renderBanner();
  }

  #candidate(candidate, place) {
    const examples = candidate.examples.map((row) => make("img", { src: photo(row), alt: "", loading: "lazy" }));
    const button = make(
      "button",
      { type: "button", "aria-keyshortcuts": place + 1, on: { click: () => this.choose(place) } },
      make("kbd", {}, String(place + 1)),
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
    const told = [...verdicts, ...passed.filter(({ kind }) => kind === "unsure")];
    const banner = find("#banner");
    banner.className = state === "conflict" ? "conflict" : told.length ? "told" : "";
    if (!told.length) return banner.replaceChildren();
    const before = replaced.map((old) => make("span", { class: "quiet" }, `${old.person} said ${saying(old)}, replaced by ${old.by.person}`));
    const on = make("button", { type: "button", on: { click: this.next } }, "→ go on");
    banner.replaceChildren(...told.map(sentence), ...before, make("span", { class: "hint" }, hintFor(state, verdicts), on));
  }
}

function hintFor(state, verdicts) {
  if (state === "conflict") return "Conflict. Choose again to settle it, or ";
  if (verdicts.some((verdict) => verdict.person === person())) return "Choose again to change it, or ";
  return "Agree, differ, or ";
}
