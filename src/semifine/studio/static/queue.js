// The queue of images, and the details of the next ones.

import { get, photo } from "./api.js";
import { apiQuery } from "./filters.js";
import { person } from "./people.js";

const PREFETCH = 3; // images whose details are fetched in advance
const REFILL_BELOW = 8; // fetch more images when fewer are left
const BATCH = 60;

export class Queue {
  filter = { state: "waiting", order: "informative", class: "", cluster: "", text: "", after: "", before: "" };
  ids = [];
  past = [];
  #remaining = 0; // matching images that the server has not sent yet
  #passed = new Set(); // shown images that the server would send again
  #settled = new Set(); // images that no longer wait; earlier details may still list them as look-alikes
  #details = new Map();

  async load() {
    const response = await this.#request(BATCH); // first, so that a failed request changes nothing
    for (const cache of [this.#passed, this.#settled, this.#details]) cache.clear();
    this.ids = [];
    this.#add(response);
  }

  #request(count) {
    return get("queue", { ...apiQuery(this.filter), person: person(), count });
  }

  #add({ ids, total }) {
    const known = new Set([...this.ids, ...this.#passed]);
    const isSettled = (id) => this.isWaiting && this.#settled.has(id); // answered since the request
    this.ids.push(...ids.filter((id) => !known.has(id) && !isSettled(id)));
    this.#remaining = total - ids.length;
  }

  async #refill() {
    this.#add(await this.#request(BATCH + this.#passed.size));
  }

  /** Loads the images behind the current one again, because the live model has learned or new images have arrived. */
  async reloadRest() {
    const { filter } = this;
    const response = await this.#request(BATCH + this.#passed.size);
    if (filter !== this.filter) return; // another queue was loaded meanwhile
    for (const id of [...this.#details.keys()]) if (id !== this.current) this.#details.delete(id);
    this.ids = this.ids.slice(0, 1);
    this.#add(response);
  }

  get current() {
    return this.ids[0];
  }

  /** Number of images left, including the current one. */
  get length() {
    return this.ids.length + this.#remaining;
  }

  get isWaiting() {
    return this.filter.state === "waiting";
  }

  get isFiltered() {
    const { class: className, cluster, text, after, before } = this.filter;
    return [className, cluster, text, after, before].some((value) => value !== "");
  }

  /** Whether images have been shown since the queue was loaded. */
  get hasStarted() {
    return this.#passed.size + this.#settled.size > 0;
  }

  async advance(isAnswered) {
    const [id] = this.ids.splice(0, 1);
    if (id === undefined) return;
    this.past.push(id);
    this.forget([id]);
    (isAnswered && this.isWaiting ? this.#settled : this.#passed).add(id);
    if (this.ids.length < REFILL_BELOW && this.#remaining > 0) await this.#refill();
    if (this.ids.length || !this.isWaiting) return;
    this.#passed.clear(); // skipped images come back at the end
    await this.#refill();
  }

  back() {
    const id = this.past.pop();
    if (id !== undefined) this.moveToFront(id);
  }

  /** Makes an image the current one, even if the queue does not contain it. */
  moveToFront(id) {
    this.ids = [id, ...this.ids.filter((other) => other !== id)];
    this.#passed.delete(id);
    this.reopen([id]);
  }

  /** Removes answered images except the current one. */
  remove(ids) {
    const removed = new Set(ids);
    this.ids = this.ids.filter((id, index) => index === 0 || !removed.has(id));
    for (const id of ids) this.#settled.add(id);
    this.forget(ids);
  }

  /** Marks images as waiting again. */
  reopen(ids) {
    for (const id of ids) this.#settled.delete(id);
    this.forget(ids);
  }

  forget(ids) {
    for (const id of ids) this.#details.delete(id);
  }

  async details(id) {
    if (!this.#details.has(id)) {
      const request = get(`image/${id}`);
      request.catch(() => this.#details.delete(id));
      this.#details.set(id, request);
    }
    const image = await this.#details.get(id);
    return { ...image, look_alikes: image.look_alikes.filter((other) => !this.#settled.has(other.id)) };
  }

  prefetch() {
    for (const id of this.ids.slice(1, 1 + PREFETCH))
      this.details(id).then(({ row }) => (new Image().src = photo(row, "large")), () => {});
  }
}
