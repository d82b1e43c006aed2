// One image, its candidates, and the answers.

import { photo, post, shownRun } from "./api.js";
import { find, make, percent, plural, toast } from "./dom.js";
import { person } from "./person.js";
import { askWhichHolds, rivalsOf, saying, sentence } from "./replacing.js";

const VERDICTS = ["label", "none_of_these"];

export class Desk {
  image = null; // what the page shows of the current image
  alsoLookAlikes = false;
  #busy = false;

  constructor(queue) {
    this.queue = queue;
  }

  async show() {
    const id = this.queue.current;
    find("#desk").hidden = id === undefined;
    find("#empty").hidden = id !== undefined;
    if (id === undefined) {
      this.image = null;
      find("#total").textContent = "";
      find("#empty").textContent =
        this.queue.wanted.state === "waiting" ? "Nothing is waiting here. Well done." : "There are no such images.";
      return;
    }
    const image = await this.queue.detail(id);
    if (id !== this.queue.current) return; // somebody was faster on the keys than the network
    this.image = image;
    this.alsoLookAlikes = false;
    this.#render();
    this.queue.prefetch();
  }

  /** What others said meanwhile. */
  update(standing) {
    if (!this.image) return;
    Object.assign(this.image, standing);
    this.#renderBanner();
  }

  async say(kind, className = null) {
    if (!this.image || this.#busy) return;
    this.#busy = true;
    try {
      await this.#answer({ kind, class: className });
    } catch (error) {
      toast(error.message, true);
    } finally {
      this.#busy = false;
    }
  }

  async #answer(answer) {
    const { id, seen, verdicts } = this.image; // what comes while the person is asked is not replaced
    const rivals = VERDICTS.includes(answer.kind) ? rivalsOf(answer, verdicts) : [];
    const choice = rivals.length ? await askWhichHolds(rivals, answer) : "replace";
    if (!choice) return;
    const others = this.alsoLookAlikes && answer.kind !== "skip" ? this.#ticked() : [];
    const images = [{ id, seen: choice === "replace" ? seen : 0 }, ...others.map((other) => ({ id: other.id, seen: other.seen }))];
    const { images: now } = await post("say", { run: shownRun(), person: person(), images, ...answer });
    const disputed = images.filter((image) => now[image.id].state === "conflict");
    this.queue.drop(others.map((other) => other.id));
    if (disputed.length && choice === "replace" && now[id].state === "conflict") {
      this.update(now[id]);
      this.queue.forget([id]);
      toast("You and somebody else differ about this image.", true);
      return;
    }
    const scope = others.length ? ` for ${images.length} images` : "";
    toast(`${saying(answer)}${scope}${disputed.length ? `, ${disputed.length} in conflict` : ""}`);
    await this.next(true);
  }

  async next(isAnswered = false) {
    await this.queue.advance(isAnswered);
    await this.show();
  }

  async back() {
    this.queue.back();
    await this.show();
  }

  async undo() {
    try {
      const { ids } = await post("undo", { person: person() });
      if (!ids.length) return toast("There is nothing to take back.");
      toast(`Taken back${ids.length > 1 ? ` for ${ids.length} images` : ""}`);
      this.queue.forget(ids);
      this.queue.show(ids[0]);
      await this.show();
    } catch (error) {
      toast(error.message, true);
    }
  }

  choose(place) {
    const candidate = this.image?.candidates[place];
    if (candidate) this.say("label", candidate.name);
  }

  toggleLookAlikes() {
    const box = find("#look-alikes input[name=also]");
    if (box) {
      box.checked = !box.checked;
      box.dispatchEvent(new Event("change"));
    }
  }

  #ticked() {
    const ticked = new Set([...document.querySelectorAll("#look-alikes li input:checked")].map((box) => Number(box.value)));
    return this.image.look_alikes.filter(({ id }) => ticked.has(id));
  }

  #render() {
    const { image, queue } = this;
    // A new element: in some browsers an old one shows the photo before until this one is there.
    find("#photo").replaceChildren(make("img", { src: photo(image.row, "large"), alt: "The image to label" }));
    find("#path").textContent = image.path;
    find("#total").textContent = plural(queue.left, "image");
    find("#candidates").style.setProperty("--count", image.candidates.length);
    find("#candidates").replaceChildren(...image.candidates.map((candidate, place) => this.#candidate(candidate, place)));
    this.#renderLookAlikes();
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

  #renderLookAlikes() {
    const alike = this.image.look_alikes;
    if (!alike.length) return find("#look-alikes").replaceChildren();
    const list = make(
      "ul",
      {},
      alike.map(({ id, row }) =>
        make(
          "li",
          {},
          make(
            "label",
            {},
            make("img", { src: photo(row), alt: `Look-alike ${id}` }),
            make("input", { type: "checkbox", value: id, checked: true, "aria-label": `Include look-alike ${id}` }),
          ),
        ),
      ),
    );
    const also = make("input", {
      type: "checkbox",
      name: "also",
      on: {
        change: (event) => {
          this.alsoLookAlikes = event.target.checked;
          list.classList.toggle("on", event.target.checked);
        },
      },
    });
    const title = make("label", {}, also, make("kbd", {}, "A"), ` Answer for ${plural(alike.length, "look-alike")}, too`);
    find("#look-alikes").replaceChildren(title, list);
  }

  #renderBanner() {
    const { verdicts, replaced, passed, state } = this.image;
    const told = [...verdicts, ...passed.filter(({ kind }) => kind === "unsure")];
    const banner = find("#banner");
    banner.className = state === "conflict" ? "conflict" : told.length ? "told" : "";
    if (!told.length) return banner.replaceChildren();
    const before = replaced.map((old) => make("span", { class: "quiet" }, `${old.person} said ${saying(old)}, replaced by ${old.by.person}`));
    const on = make("button", { type: "button", on: { click: () => this.next() } }, "→ go on");
    banner.replaceChildren(...told.map(sentence), ...before, make("span", { class: "hint" }, hintFor(state, verdicts), on));
  }
}

function hintFor(state, verdicts) {
  if (state === "conflict") return "Conflict. Choose again to settle it, or ";
  if (verdicts.some((verdict) => verdict.person === person())) return "Choose again to change it, or ";
  return "Agree, differ, or ";
}
