// The map of the classes: similar classes are close together, lines join confused classes. It zooms and moves.

import { draw, make, plural } from "./dom.js";
import { placeNames, separateDots, spread } from "./map_layout.js";

export const HUES = 8;
const EDGE = 26;
const FONT_SIZE = 12; // pixels; the map is drawn for the width of the window
const MANY_CLASSES = 80; // maps with more classes have smaller dots
const MAX_SCALE = 40;
const STEP = 1.5; // zoom factor of a button or key
const MOVE = 80; // pixels that an arrow key moves
const DRAG_FROM = 5; // pixels of movement that make a click a drag

/** A figure. With a known width it is drawn at once, so that the content below it does not move. */
export function classMap(overview, open, width = 0) {
  const figure = make("figure", { id: "map" });
  const map = new ClassMap(figure, overview, open);
  if (width) map.resize(width);
  new ResizeObserver(([{ contentRect }]) => map.resize(contentRect.width)).observe(figure);
  return figure;
}

class ClassMap {
  #width = 0;
  #view = lastView; // the part that is shown stays when the overview is loaded again

  constructor(figure, overview, open) {
    this.figure = figure;
    this.open = open;
    this.classes = overview.classes.filter(({ position, retired }) => position && !retired);
    this.positions = spread(this.classes.map(({ position }) => position));
    const index = new Map(this.classes.map(({ id }, number) => [id, number]));
    const isShown = ([first, second]) => index.has(first) && index.has(second);
    this.pairs = overview.pairs.filter(isShown).map(([first, second, count]) => [index.get(first), index.get(second), count]);
    figure.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    figure.addEventListener("pointerdown", (event) => this.#drag(event));
    figure.addEventListener("keydown", (event) => this.#key(event));
  }

  resize(width) {
    if (Math.abs(width - this.#width) < 1) return;
    this.#width = width;
    this.#draw();
  }

  get #height() {
    return Math.max(0.5 * this.#width, 640 - 0.2 * this.#width); // a narrow map needs more height for the names
  }

  #setView(view) {
    const scale = Math.min(MAX_SCALE, Math.max(1, view.scale));
    const inside = (offset, length) => Math.min(0, Math.max(length * (1 - scale), offset));
    lastView = this.#view = { scale, x: inside(view.x, this.#width), y: inside(view.y, this.#height) };
    this.#draw();
  }

  /** Zooms around a point of the map. */
  #zoom(factor, [x, y] = [this.#width / 2, this.#height / 2]) {
    const { scale, ...old } = this.#view;
    const next = Math.min(MAX_SCALE, Math.max(1, scale * factor));
    this.#setView({ scale: next, x: x - ((x - old.x) * next) / scale, y: y - ((y - old.y) * next) / scale });
  }

  #move(dx, dy) {
    this.#setView({ ...this.#view, x: this.#view.x + dx, y: this.#view.y + dy });
  }

  #point({ clientX, clientY }) {
    const { left, top } = this.figure.querySelector("svg").getBoundingClientRect();
    return [clientX - left, clientY - top];
  }

  /** Without Ctrl, the wheel scrolls the page. */
  #wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.#zoom(Math.exp(-event.deltaY / 300), this.#point(event));
  }

  #drag(event) {
    if (event.button !== 0 || !event.target.closest("svg")) return;
    let last = event;
    let isDrag = false;
    const move = (next) => {
      isDrag ||= Math.hypot(next.clientX - event.clientX, next.clientY - event.clientY) > DRAG_FROM;
      if (!isDrag || this.#view.scale === 1) return;
      this.#move(next.clientX - last.clientX, next.clientY - last.clientY);
      last = next;
    };
    const stop = () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", stop);
      removeEventListener("pointercancel", stop);
      setTimeout(() => (this.isDragged = false));
      this.isDragged = isDrag;
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", stop);
    addEventListener("pointercancel", stop);
  }

  #key({ key, target }) {
    if (key === "+" || key === "=") this.#zoom(STEP);
    else if (key === "-") this.#zoom(1 / STEP);
    else if (key === "0") this.#setView({ scale: 1, x: 0, y: 0 });
    else if (!target.closest("svg") && key.startsWith("Arrow"))
      this.#move(...{ ArrowLeft: [MOVE, 0], ArrowRight: [-MOVE, 0], ArrowUp: [0, MOVE], ArrowDown: [0, -MOVE] }[key]);
  }

  #draw() {
    const [width, height] = [this.#width, this.#height];
    const { classes, pairs } = this;
    const dots = this.#dots();
    const shown = dots.map(({ x, y, r }) => x > -r && x < width + r && y > -r && y < height + r);
    const highest = Math.max(1, ...pairs.map(([, , count]) => count));
    const lines = pairs.map(([first, second]) => [dots[first].x, dots[first].y, dots[second].x, dots[second].y]);
    const inView = dots.map((_, index) => index).filter((index) => shown[index]);
    const boxes = placeNames(inView.map((index) => dots[index]), lines, { width, height, lineHeight: FONT_SIZE + 3 });
    const unnamed = boxes.filter((box) => !box).length;
    const line = ([x1, y1, x2, y2], properties) => draw("line", { x1, y1, x2, y2, ...properties });
    const svg = draw(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, height, role: "group", "aria-label": "Map of the classes" },
      lines.map((ends, index) => line(ends, { class: "pair", "stroke-width": 1 + (3 * pairs[index][2]) / highest })),
      boxes.filter((box) => box?.leader).map(({ leader }) => line(leader, { class: "leader" })),
      inView.map((index) => this.#drawDot(classes[index], dots[index])),
      boxes.map((box, number) => box && draw("text", { x: box.left, y: box.bottom - 4 }, classes[inView[number]].name)),
    );
    const focused = this.figure.querySelector(":focus")?.dataset.key;
    this.figure.replaceChildren(svg, this.#tools(), make("figcaption", { class: "quiet" }, captionText(unnamed)));
    if (focused) this.figure.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  #dots() {
    const [width, height] = [this.#width, this.#height];
    const { scale, x: left, y: top } = this.#view;
    const highest = Math.max(1e-9, ...this.classes.map(({ uncertainty }) => uncertainty));
    const size = this.classes.length > MANY_CLASSES * scale ? 0.6 : 1;
    const canvas = document.createElement("canvas").getContext("2d");
    canvas.font = `${FONT_SIZE}px system-ui, sans-serif`;
    const dots = this.classes.map(({ name, uncertainty }, index) => ({
      x: left + scale * (EDGE + this.positions[index][0] * (width - 2 * EDGE)),
      y: top + scale * (EDGE + this.positions[index][1] * (height - 2 * EDGE)),
      r: size * (4 + 6 * Math.sqrt(uncertainty / highest)),
      width: canvas.measureText(name).width + 4,
      priority: uncertainty,
    }));
    separateDots(dots, scale === 1 ? [width, height] : null);
    return dots;
  }

  #drawDot({ id, name, cluster, waiting }, { x, y, r }) {
    const select = (event) => {
      event.preventDefault();
      if (!this.isDragged) this.open(id);
    };
    return draw(
      "a",
      { href: "#grid", "aria-label": name, "data-key": `class-${id}`, on: { click: select } },
      draw("title", {}, `${name}: ${waiting} waiting`),
      draw("circle", { cx: x, cy: y, r, class: `hue-${cluster % HUES}` }),
    );
  }

  #tools() {
    const { scale } = this.#view;
    const button = (key, name, action, disabled) =>
      make("button", { type: "button", "data-key": key, "aria-label": name, title: name, disabled, on: { click: action } }, key);
    return make("div", { class: "tools", role: "group", "aria-label": "Zoom of the map" },
      button("+", "Larger, key +", () => this.#zoom(STEP), scale >= MAX_SCALE),
      button("−", "Smaller, key −", () => this.#zoom(1 / STEP), scale <= 1),
      button("Fit", "Fit, key 0", () => this.#setView({ scale: 1, x: 0, y: 0 }), scale <= 1));
  }
}

let lastView = { scale: 1, x: 0, y: 0 };

function captionText(unnamed) {
  const caption =
    "Similar classes are close together, and lines join confused classes. " +
    "Larger dots have more uncertain images. Colors show clusters. Zoom with Ctrl and the wheel, then drag.";
  return unnamed ? `${caption} ${plural(unnamed, "name does", "names do")} not fit: zoom in.` : caption;
}
