// Which images come next, and what is known of each.

import { get, photo } from "./api.js";
import { person } from "./person.js";

const AHEAD = 3; // images that are fetched before they are needed
const FEW = 8; // when fewer are left, the server is asked for more

export class Queue {
  wanted = { state: "waiting", order: "worth", class: "", cluster: "", text: "" };
  ids = [];
  done = new Set(); // answered or passed over since the queue was asked for
  past = [];
  total = 0;
  #details = new Map();

  async load() {
    const { ids, total } = await get("queue", { ...this.wanted, person: person() });
    this.done.clear();
    this.ids = ids;
    this.total = total;
    this.#details.clear();
  }

  get current() {
    return this.ids[0];
  }

  async advance() {
    const [id] = this.ids.splice(0, 1);
    if (id === undefined) return;
    this.past.push(id);
    this.done.add(id);
    if (this.ids.length < FEW && this.total > this.ids.length + this.done.size) await this.#refill();
  }

  async #refill() {
    const { ids, total } = await get("queue", { ...this.wanted, person: person() });
    const known = new Set(this.ids);
    this.ids.push(...ids.filter((id) => !known.has(id) && !this.done.has(id)));
    this.total = total + [...this.done].filter((id) => !ids.includes(id)).length;
  }

  back() {
    const id = this.past.pop();
    if (id !== undefined) this.show(id);
  }

  /** Puts an image in front, whether or not it is in the queue. */
  show(id) {
    this.ids = [id, ...this.ids.filter((other) => other !== id)];
    this.done.delete(id);
    this.forget([id]);
  }

  /** Leaves out images that are answered, but for the one that is looked at. */
  drop(ids) {
    const gone = new Set(ids);
    this.ids = this.ids.filter((id, place) => place === 0 || !gone.has(id));
    for (const id of ids) if (id !== this.current) this.done.add(id);
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
