// The zoom dialog. Wheel, pinch, double tap, buttons and keys zoom; dragging and arrow keys move the photo.

import { photo } from "./api.js";
import { find, make } from "./dom.js";
import { keyOf } from "./keyboard.js";

const STEP = 1.4; // zoom factor of a key or button
const CLOSE_UP = 3; // zoom factor of a double tap
const MIN_MAX_SCALE = 8; // the largest zoom factor; larger for large photos, until one pixel of the photo has LARGE_PIXEL pixels
const LARGE_PIXEL = 4;
const MOVE = 0.15; // share of the window that an arrow key moves
const ARROWS = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

export class Zoom {
  #dialog = find("#zoom-dialog");
  #stage = find("#zoom-dialog .stage");
  #picture = null;
  #scale = 1; // 1 fits the window
  #offset = [0, 0]; // from the center of the window to the center of the photo
  #pointers = new Map(); // last event of each finger or mouse

  constructor() {
    const dialog = this.#dialog;
    dialog.onkeydown = (event) => this.#key(event);
    dialog.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    const stage = this.#stage;
    stage.ondblclick = (event) => (this.#scale > 1 ? this.#fit() : this.#enlarge(CLOSE_UP, event));
    stage.onpointerdown = (event) => {
      stage.setPointerCapture(event.pointerId);
      this.#pointers.set(event.pointerId, event);
    };
    // Without this, the browser continues to scroll after a pinch, and the next tap only stops the scrolling.
    stage.addEventListener("touchmove", (event) => event.preventDefault(), { passive: false });
    stage.onpointermove = (event) => this.#drag(event);
    stage.onpointerup = stage.onpointercancel = (event) => this.#pointers.delete(event.pointerId);
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
    // The large photo is already loaded; the full photo replaces it.
    const picture = make("img", { src: photo(row, "large"), alt: "The enlarged image", on: { load: () => this.#draw() } });
    const full = make("img", { src: photo(row, "full") });
    full.decode().then(() => (picture.src = full.src), () => {});
    this.#picture = picture;
    this.#stage.replaceChildren(picture);
    this.#pointers.clear();
    this.#dialog.showModal();
    this.#fit();
  }

  #fit() {
    this.#scale = 1;
    this.#draw();
  }

  /** Zooms by a factor around a point of the window. */
  #enlarge(factor, { clientX, clientY } = { clientX: innerWidth / 2, clientY: innerHeight / 2 }) {
    const before = this.#scale;
    this.#scale = Math.min(Math.max(before * factor, 1), this.#maxScale);
    const point = [clientX - innerWidth / 2, clientY - innerHeight / 2];
    this.#offset = this.#offset.map((offset, axis) => point[axis] - (this.#scale / before) * (point[axis] - offset));
    this.#draw();
  }

  #move([x, y]) {
    this.#offset = [this.#offset[0] + x, this.#offset[1] + y];
    this.#draw();
  }

  /** Window pixels per photo pixel if the photo fits the window. */
  get #fitScale() {
    return Math.min(innerWidth / (this.#picture.naturalWidth || 1), innerHeight / (this.#picture.naturalHeight || 1));
  }

  get #maxScale() {
    return Math.max(MIN_MAX_SCALE, LARGE_PIXEL / this.#fitScale);
  }

  #draw() {
    const { naturalWidth, naturalHeight } = this.#picture;
    const shown = this.#scale * this.#fitScale;
    const room = [naturalWidth * shown - innerWidth, naturalHeight * shown - innerHeight].map((size) => Math.max(0, size / 2));
    this.#offset = this.#offset.map((offset, axis) => Math.min(Math.max(offset, -room[axis]), room[axis])); // the photo stays visible
    this.#picture.style.transform = `translate(${this.#offset[0]}px, ${this.#offset[1]}px) scale(${this.#scale})`;
    find("output", this.#dialog).textContent = `× ${this.#scale.toFixed(1)}`;
  }

  #wheel(event) {
    event.preventDefault();
    const turned = event.deltaY * (event.deltaMode ? 16 : 1); // some browsers report lines
    const speed = event.ctrlKey ? 0.01 : 0.003; // a touch pad reports a pinch as a slow wheel with Ctrl
    this.#enlarge(Math.exp(-speed * Math.min(Math.max(turned, -150), 150)), event);
  }

  #drag(event) {
    if (!this.#pointers.has(event.pointerId)) return;
    const before = center(this.#pointers);
    this.#pointers.set(event.pointerId, event);
    const now = center(this.#pointers);
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
    event.stopPropagation(); // otherwise the key that closes the dialog would open it again
  }
}

/** The center of all pointers, and the distance between the first two. */
function center(pointers) {
  const all = [...pointers.values()];
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  return {
    clientX: mean(all.map(({ clientX }) => clientX)),
    clientY: mean(all.map(({ clientY }) => clientY)),
    spread: all.length > 1 ? Math.hypot(all[0].clientX - all[1].clientX, all[0].clientY - all[1].clientY) : 0,
  };
}
