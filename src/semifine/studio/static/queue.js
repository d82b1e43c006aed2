// Which images come next, and what is known of each.

import { get, photo } from "./api.js";
import { person } from "./person.js";

const AHEAD = 3; // images that are fetched before they are needed
const FEW = 8; // when fewer are left, the server is asked for more
const MANY = 60;

export class Queue {
  wanted = { state: "waiting", order: "worth", class: "", cluster: "", text: "" };
  ids = [];
  past = [];
  #beyond = 0; // images that fit, beyond those that the server sent
  #passed = new Set(); // looked at, and the server would send them again
  #settled = new Set(); // no longer waiting; what was fetched before may still call them look-alikes
  #details = new Map();

  async load() {
    const sent = await this.#ask(MANY); // first: where no answer comes, all stays as it is
    for (const known of [this.#passed, this.#settled, this.#details]) known.clear();
    this.ids = [];
    this.#take(sent);
  }

  #ask(count) {
    return get("queue", { ...this.wanted, person: person(), count });
  }

  #take({ ids, total }) {
    const known = new Set([...this.ids, ...this.#passed]);
    this.ids.push(...ids.filter((id) => !known.has(id)));
    this.#beyond = total - ids.length;
  }

  async #fetch() {
    this.#take(await this.#ask(MANY + this.#passed.size));
  }

  get current() {
    return this.ids[0];
  }

  /** How many images are left, the current one included. */
  get left() {
    return this.ids.length + this.#beyond;
  }

  get isForWaiting() {
    return this.wanted.state === "waiting";
  }

  get isNarrowed() {
    const { class: of, cluster, text } = this.wanted;
    return [of, cluster, text].some((value) => value !== "");
  }

  /** Whether there were images since it was loaded. */
  get hasBegun() {
    return this.#passed.size + this.#settled.size > 0;
  }

  async advance(isAnswered) {
    const [id] = this.ids.splice(0, 1);
    if (id === undefined) return;
    this.past.push(id);
    this.forget([id]);
    (isAnswered && this.isForWaiting ? this.#settled : this.#passed).add(id);
    if (this.ids.length < FEW && this.#beyond > 0) await this.#fetch();
    if (this.ids.length || !this.isForWaiting) return;
    this.#passed.clear(); // what was passed over or skipped comes back at the end
    await this.#fetch();
  }

  back() {
    const id = this.past.pop();
    if (id !== undefined) this.show(id);
  }

  /** Puts an image in front, whether or not it is in the queue. */
  show(id) {
    this.ids = [id, ...this.ids.filter((other) => other !== id)];
    this.#passed.delete(id);
    this.reopen([id]);
  }

  /** Leaves out images that are answered, but for the one that is looked at. */
  drop(ids) {
    const gone = new Set(ids);
    this.ids = this.ids.filter((id, place) => place === 0 || !gone.has(id));
    for (const id of ids) this.#settled.add(id);
    this.forget(ids);
  }

  /** Takes in that images wait again. */
  reopen(ids) {
    for (const id of ids) this.#settled.delete(id);
    this.forget(ids);
  }

  forget(ids) {
    for (const id of ids) this.#details.delete(id);
  }

  async detail(id) {
    if (!this.#details.has(id)) {
      const asked = get(`image/${id}`);
      asked.catch(() => this.#details.delete(id));
      this.#details.set(id, asked);
    }
    const image = await this.#details.get(id);
    return { ...image, look_alikes: image.look_alikes.filter((other) => !this.#settled.has(other.id)) };
  }

  prefetch() {
    for (const id of this.ids.slice(1, 1 + AHEAD))
      this.detail(id).then(({ row }) => (new Image().src = photo(row, "large")), () => {});
  }
}
