// The photo as large as one likes: by wheel, pinch, double tap, buttons and keys; drag or arrows to move it.

import { photo } from "./api.js";
import { find, make } from "./dom.js";
import { keyOf } from "./keyboard.js";

const STEP = 1.4; // of a key or a button
const CLOSE_UP = 3; // of a double tap
const LEAST_MOST = 8; // so far a photo can be enlarged however small it is, and beyond, until pixels are large:
const LARGE_PIXEL = 4;
const MOVE = 0.15; // of the window, by an arrow key
const ARROWS = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

export class Zoom {
  #dialog = find("#zoom-dialog");
  #stage = find("#zoom-dialog .stage");
  #picture = null;
  #scale = 1; // 1 fits the window
  #at = [0, 0]; // of the photo's middle, from that of the window
  #fingers = new Map(); // where each finger, or the mouse, is

  constructor() {
    const dialog = this.#dialog;
    dialog.onkeydown = (event) => this.#key(event);
    dialog.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    const stage = this.#stage;
    stage.ondblclick = (event) => (this.#scale > 1 ? this.#fit() : this.#enlarge(CLOSE_UP, event));
    stage.onpointerdown = (event) => {
      stage.setPointerCapture(event.pointerId);
      this.#fingers.set(event.pointerId, event);
    };
    // Or the browser lets the page coast after a pinch, and a tap on a button only ends that.
    stage.addEventListener("touchmove", (event) => event.preventDefault(), { passive: false });
    stage.onpointermove = (event) => this.#drag(event);
    stage.onpointerup = stage.onpointercancel = (event) => this.#fingers.delete(event.pointerId);
    find(".tools", dialog).onclick = ({ target }) => this.#tools[target.closest("button")?.name]?.();
    addEventListener("resize", () => dialog.open && this.#draw());
  }

  #tools = {
    larger: () => this.#enlarge(STEP),
    smaller: () => this.#enlarge(1 / STEP),
    fit: () => this.#fit(),
    close: () => this.#dialog.close(),
  };

  open(row) {
    // What the desk shows is there already; the whole photo follows.
    const picture = make("img", { src: photo(row, "large"), alt: "The image, enlarged", on: { load: () => this.#draw() } });
    const whole = make("img", { src: photo(row, "full") });
    whole.decode().then(() => (picture.src = whole.src), () => {});
    this.#picture = picture;
    this.#stage.replaceChildren(picture);
    this.#fingers.clear();
    this.#dialog.showModal();
    this.#fit();
  }

  #fit() {
    this.#scale = 1;
    this.#draw();
  }

  /** By a factor, so that what lies at a point of the window stays there. */
  #enlarge(factor, { clientX, clientY } = { clientX: innerWidth / 2, clientY: innerHeight / 2 }) {
    const before = this.#scale;
    this.#scale = Math.min(Math.max(before * factor, 1), this.#most);
    const point = [clientX - innerWidth / 2, clientY - innerHeight / 2];
    this.#at = this.#at.map((at, axis) => point[axis] - (this.#scale / before) * (point[axis] - at));
    this.#draw();
  }

  #move([x, y]) {
    this.#at = [this.#at[0] + x, this.#at[1] + y];
    this.#draw();
  }

  /** Pixels of the window for one of the photo, where it fits. */
  get #fitted() {
    return Math.min(innerWidth / (this.#picture.naturalWidth || 1), innerHeight / (this.#picture.naturalHeight || 1));
  }

  get #most() {
    return Math.max(LEAST_MOST, LARGE_PIXEL / this.#fitted);
  }

  #draw() {
    const { naturalWidth, naturalHeight } = this.#picture;
    const shown = this.#scale * this.#fitted;
    const room = [naturalWidth * shown - innerWidth, naturalHeight * shown - innerHeight].map((size) => Math.max(0, size / 2));
    this.#at = this.#at.map((at, axis) => Math.min(Math.max(at, -room[axis]), room[axis])); // never out of sight
    this.#picture.style.transform = `translate(${this.#at[0]}px, ${this.#at[1]}px) scale(${this.#scale})`;
    find("output", this.#dialog).textContent = `× ${this.#scale.toFixed(1)}`;
  }

  #wheel(event) {
    event.preventDefault();
    const turned = event.deltaY * (event.deltaMode ? 16 : 1); // some browsers count lines
    const speed = event.ctrlKey ? 0.01 : 0.003; // a pinch on a touch pad comes as a slow wheel with Ctrl
    this.#enlarge(Math.exp(-speed * Math.min(Math.max(turned, -150), 150)), event);
  }

  #drag(event) {
    if (!this.#fingers.has(event.pointerId)) return;
    const before = grip(this.#fingers);
    this.#fingers.set(event.pointerId, event);
    const now = grip(this.#fingers);
    this.#move([now.clientX - before.clientX, now.clientY - before.clientY]);
    if (before.spread && now.spread) this.#enlarge(now.spread / before.spread, now);
  }

  #key(event) {
    const { key } = event;
    if (ARROWS[key]) this.#move([ARROWS[key][0] * MOVE * innerWidth, ARROWS[key][1] * MOVE * innerHeight]);
    else if (key === "+" || key === "=") this.#tools.larger();
    else if (key === "-") this.#tools.smaller();
    else if (keyOf(event) === "0") this.#tools.fit();
    else if (keyOf(event) === "z" && !event.repeat) this.#tools.close();
    else return;
    event.preventDefault();
    event.stopPropagation(); // or the key that closes it would open it again
  }
}

/** The middle of all fingers, and how far the first two are apart. */
function grip(fingers) {
  const all = [...fingers.values()];
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  return {
    clientX: mean(all.map(({ clientX }) => clientX)),
    clientY: mean(all.map(({ clientY }) => clientY)),
    spread: all.length > 1 ? Math.hypot(all[0].clientX - all[1].clientX, all[0].clientY - all[1].clientY) : 0,
  };
}
