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
  #total = 0;
  #answered = new Set(); // since the server was last asked
  #passed = new Set(); // passed over without an answer: the server does not know of them
  #details = new Map();

  async load() {
    this.#passed.clear();
    this.#details.clear();
    this.ids = [];
    await this.#fetch();
  }

  async #fetch() {
    const count = MANY + this.#passed.size;
    const { ids, total } = await get("queue", { ...this.wanted, person: person(), count });
    const known = new Set([...this.ids, ...this.#passed]);
    this.ids.push(...ids.filter((id) => !known.has(id)));
    this.#answered.clear();
    this.#total = total;
  }

  get current() {
    return this.ids[0];
  }

  /** How many images are left, the current one included. */
  get left() {
    return Math.max(this.ids.length, this.#total - this.#answered.size - this.#passed.size);
  }

  async advance(isAnswered) {
    const [id] = this.ids.splice(0, 1);
    if (id === undefined) return;
    this.past.push(id);
    (isAnswered ? this.#answered : this.#passed).add(id);
    if (this.ids.length < FEW && this.left > this.ids.length) await this.#fetch();
  }

  back() {
    const id = this.past.pop();
    if (id !== undefined) this.show(id);
  }

  /** Puts an image in front, whether or not it is in the queue. */
  show(id) {
    this.ids = [id, ...this.ids.filter((other) => other !== id)];
    this.#answered.delete(id);
    this.#passed.delete(id);
    this.forget([id]);
  }

  /** Leaves out images that are answered, but for the one that is looked at. */
  drop(ids) {
    const gone = new Set(ids);
    this.ids = this.ids.filter((id, place) => place === 0 || !gone.has(id));
    for (const id of ids) if (id !== this.current) this.#answered.add(id);
    this.forget(ids);
  }

  forget(ids) {
    for (const id of ids) this.#details.delete(Number(id));
  }

  detail(id) {
    if (!this.#details.has(id)) {
      const asked = get(`image/${id}`);
      asked.catch(() => this.#details.delete(id));
      this.#details.set(id, asked);
    }
    return this.#details.get(id);
  }

  prefetch() {
    for (const id of this.ids.slice(1, 1 + AHEAD))
      this.detail(id).then(({ row }) => (new Image().src = photo(row, "large")), () => {});
  }
}
