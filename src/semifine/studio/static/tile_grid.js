// A grid of tiles with virtual scrolling: only the tiles in view are in the page. Selects by mouse, touch and keyboard.

import { photo } from "./api.js";
import { find, make } from "./dom.js";
import { cancelPhoto, holdPhotos, loadPhoto } from "./photo_loader.js";

const GAP = 6; // pixels
const CAPTION = 24; // height of the text below a photo
const MARGIN_ROWS = 2; // rows above and below the window that are drawn in advance
const DRAG_FROM = 6; // pixels of movement that make a click a drag
const FAST = 1.5; // windows per second: faster scrolling loads no photos
const HOLD = 120; // milliseconds without fast scrolling until photos load again
const EDGE = 40; // a drag this close to the edge scrolls

export class TileGrid {
  selected = new Set(); // ids
  focused = 0; // index
  columns = 1;
  height = 0; // of the window
  #size = 132; // the least width of a tile
  #tileSize = 132;
  #rowHeight = 132;
  #total = ""; // height of all rows
  #lastScroll = { top: 0, time: 0 };
  #anchor = 0;
  #elements = new Map(); // from index to element
  #spare = [];
  #isScheduled = false;

  /**
   * @param element The element that scrolls.
   * @param list The TileList to show.
   * @param hooks describe(tile) returns the texts of a tile; onSelect() follows each change of the selection.
   */
  constructor(element, list, { describe, onSelect, limit }) {
    Object.assign(this, { element, list, describe, onSelect, limit });
    this.canvas = find(".canvas", element);
    element.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    element.addEventListener("keydown", (event) => this.#key(event));
    element.addEventListener("pointerdown", (event) => this.#pointerDown(event));
    new ResizeObserver(() => this.#measure()).observe(element);
  }

  /** Measures the window. The result is kept, because reading sizes while scrolling would force layouts. */
  #measure() {
    const width = this.canvas.clientWidth;
    this.height = this.element.clientHeight;
    if (!width) return;
    this.columns = Math.max(1, Math.floor((width + GAP) / (this.#size + GAP)));
    this.#tileSize = (width - GAP * (this.columns - 1)) / this.columns;
    this.#rowHeight = this.#tileSize + CAPTION + GAP;
    this.canvas.style.setProperty("--tile", `${this.#tileSize}px`);
    this.schedule();
  }

  get size() {
    return this.#size;
  }

  set size(size) {
    this.#size = size;
    this.#measure();
  }

  /** The indices from the first to behind the last tile of which at least half is in view. */
  get visible() {
    const { scrollTop } = this.element;
    const height = this.#rowHeight;
    const first = Math.ceil(scrollTop / height - 0.5) * this.columns;
    const last = Math.floor((scrollTop + this.height) / height + 0.5) * this.columns;
    return [Math.max(0, first), Math.min(this.list.total, last)];
  }

  /** The tiles in view. */
  get visibleTiles() {
    const [first, last] = this.visible;
    return Array.from({ length: Math.max(0, last - first) }, (_, index) => this.list.at(first + index)).filter(Boolean);
  }

  #scrolled() {
    const [top, now] = [this.element.scrollTop, performance.now()];
    const speed = Math.abs(top - this.#lastScroll.top) / Math.max(1, now - this.#lastScroll.time); // pixels per millisecond
    if (speed > (FAST * this.height) / 1000 && now - this.#lastScroll.time < HOLD) holdPhotos(HOLD);
    this.#lastScroll = { top, time: now };
    this.schedule();
  }

  /** Draws the tiles before the next frame. */
  schedule() {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    requestAnimationFrame(() => {
      this.#isScheduled = false;
      this.draw();
    });
  }

  draw() {
    if (!this.height) this.#measure();
    if (!this.height) return; // the page is hidden
    const { columns, list } = this;
    const [size, height] = [this.#tileSize, this.#rowHeight];
    const { scrollTop } = this.element;
    const total = `${Math.ceil(list.total / columns) * height}px`;
    if (total !== this.#total) this.canvas.style.height = this.#total = total;
    const first = Math.max(0, (Math.floor(scrollTop / height) - MARGIN_ROWS) * columns);
    const last = Math.min(list.total, (Math.ceil((scrollTop + this.height) / height) + MARGIN_ROWS) * columns);
    for (const [index, element] of this.#elements) if (index < first || index >= last) this.#release(index, element);
    for (let index = first; index < last; index++) this.#drawTile(index, (index % columns) * (size + GAP), Math.floor(index / columns) * height);
    for (const element of this.#spare) if (!element.hidden) hideTile(element);
    const active = this.#elements.has(this.focused) ? `tile-${this.focused}` : "";
    if (active !== this.element.getAttribute("aria-activedescendant")) this.element.setAttribute("aria-activedescendant", active);
    list.need(first, last);
  }

  /** Gives a tile that has scrolled out to the next one that scrolls in. It stays in the page, which is faster. */
  #release(index, element) {
    cancelPhoto(element.photo);
    element.tile = null;
    this.#elements.delete(index);
    this.#spare.push(element);
  }

  #drawTile(index, x, y) {
    let element = this.#elements.get(index);
    if (!element) {
      element = this.#spare.pop() ?? this.canvas.appendChild(newTile());
      element.id = `tile-${index}`;
      if (element.hidden) element.hidden = false;
      this.#elements.set(index, element);
    }
    const place = `${x} ${y}`;
    if (element.place !== place) Object.assign(element.style, { left: `${x}px`, top: `${y}px` });
    element.place = place;
    const tile = this.list.at(index);
    const isSelected = Boolean(tile && this.selected.has(tile.id));
    const look = `${isSelected} ${index === this.focused} ${tile?.state} ${tile?.label}`;
    if (element.tile === tile && element.look === look && element.total === this.list.total) return;
    Object.assign(element, { tile, look, total: this.list.total });
    fillTile(element, tile && this.describe(tile), tile, { index, isSelected, total: this.list.total, isFocused: index === this.focused });
  }

  /** The first tiles again, nothing selected. */
  reset() {
    this.selected.clear();
    this.focused = this.#anchor = 0;
    this.element.scrollTop = 0;
    this.onSelect();
    this.schedule();
  }

  /** Drops selected ids that the list no longer has. */
  changed() {
    this.focused = Math.max(0, Math.min(this.focused, this.list.total - 1));
    this.schedule();
  }

  get focusedTile() {
    return this.list.at(this.focused);
  }

  clear() {
    this.selected.clear();
    this.#update();
  }

  #update() {
    this.onSelect();
    this.schedule();
  }

  #toggle(index) {
    const tile = this.list.at(index);
    if (!tile) return;
    if (!this.selected.delete(tile.id)) this.#add([tile]);
    this.#anchor = index;
    this.#update();
  }

  #add(tiles) {
    for (const tile of tiles) {
      if (this.selected.size >= this.limit && !this.selected.has(tile.id)) return this.onLimit?.();
      this.selected.add(tile.id);
    }
  }

  /** Selects from the anchor to an index; fetches tiles in between. */
  async #selectTo(index) {
    const [first, last] = [Math.min(this.#anchor, index), Math.max(this.#anchor, index) + 1];
    const end = Math.min(last, first + this.limit);
    await this.list.need(first, end);
    this.selected.clear();
    this.#add(Array.from({ length: end - first }, (_, offset) => this.list.at(first + offset)).filter(Boolean));
    if (end < last) this.onLimit?.();
    this.#update();
  }

  selectVisible() {
    this.#add(this.visibleTiles);
    this.#update();
  }

  // Keyboard

  #key(event) {
    const { columns } = this;
    const page = Math.max(1, Math.floor(this.height / this.#rowHeight)) * columns;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    const step = steps[event.key];
    if (step) this.#moveTo(this.focused + step, event.shiftKey);
    else if (event.key === " ") this.#toggle(this.focused);
    else if (event.key.toLowerCase() === "a" && (event.ctrlKey || event.metaKey)) this.selectVisible();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  #moveTo(index, extends_) {
    this.focused = Math.max(0, Math.min(index, this.list.total - 1));
    if (extends_) this.#selectTo(this.focused);
    else this.#anchor = this.focused;
    this.#reveal();
    this.onSelect();
    this.schedule();
  }

  #reveal() {
    const top = Math.floor(this.focused / this.columns) * this.#rowHeight;
    const { scrollTop } = this.element;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + this.#rowHeight > scrollTop + this.height) this.element.scrollTop = top + this.#rowHeight - this.height;
  }

  // Mouse and touch

  #indexAt(x, y) {
    const [size, columns] = [this.#tileSize, this.columns];
    const column = Math.min(columns - 1, Math.max(0, Math.floor(x / (size + GAP))));
    return Math.max(0, Math.floor(y / this.#rowHeight)) * columns + column;
  }

  #point({ clientX, clientY }) {
    const { left, top } = this.canvas.getBoundingClientRect();
    return [clientX - left, clientY - top];
  }

  #pointerDown(event) {
    if (event.button !== 0 || event.target === this.element && event.offsetX > this.element.clientWidth) return; // the scroll bar
    const start = this.#point(event);
    const isTouch = event.pointerType === "touch";
    let rubber = null;
    const drag = (move) => {
      const end = this.#point(move);
      if (isTouch || (!rubber && Math.hypot(end[0] - start[0], end[1] - start[1]) < DRAG_FROM)) return;
      rubber ??= new RubberBand(this, move.shiftKey || move.ctrlKey || move.metaKey);
      rubber.drawTo(start, end, move);
      move.preventDefault();
    };
    const stop = (up) => {
      removeEventListener("pointermove", drag);
      removeEventListener("pointerup", stop);
      removeEventListener("pointercancel", stop);
      if (rubber) rubber.end();
      else if (up.type === "pointerup" && up.target.closest?.(".tile")) this.#click(up, isTouch);
    };
    addEventListener("pointermove", drag);
    addEventListener("pointerup", stop);
    addEventListener("pointercancel", stop); // a finger that scrolls
  }

  #click(event, isTouch) {
    const element = event.target.closest(".tile");
    const index = [...this.#elements].find(([, other]) => other === element)?.[0];
    if (index === undefined) return;
    this.focused = index;
    if (event.shiftKey) this.#selectTo(index);
    else if (isTouch || event.ctrlKey || event.metaKey) this.#toggle(index);
    else {
      this.selected.clear();
      this.#toggle(index);
    }
    this.element.focus({ preventScroll: true });
  }

  /** Selects the tiles that a rectangle of the canvas touches, in addition to `kept`. */
  selectInside([left, top, right, bottom], kept) {
    const { columns } = this;
    const [size, height] = [this.#tileSize, this.#rowHeight];
    this.selected = new Set(kept);
    const [from, to] = [Math.floor(top / height), Math.floor(bottom / height)];
    for (let row = Math.max(0, from); row <= to; row++)
      for (let column = 0; column < columns; column++) {
        const x = column * (size + GAP);
        const touches = x < right && x + size > left && row * height < bottom && row * height + size + CAPTION > top;
        const tile = touches && this.list.at(row * columns + column);
        if (tile) this.#add([tile]);
      }
    this.#anchor = this.focused = Math.min(this.list.total - 1, this.#indexAt(left, top));
    this.#update();
  }
}

/** The rectangle that the mouse draws to select tiles. */
class RubberBand {
  #element = make("div", { class: "rubber" });
  #timer = null;

  constructor(grid, adds) {
    this.grid = grid;
    this.kept = new Set(adds ? grid.selected : []);
    grid.canvas.append(this.#element);
  }

  drawTo(start, end, { clientX, clientY }) {
    const [left, right] = [Math.min(start[0], end[0]), Math.max(start[0], end[0])];
    const [top, bottom] = [Math.min(start[1], end[1]), Math.max(start[1], end[1])];
    Object.assign(this.#element.style, { left: `${left}px`, top: `${top}px`, width: `${right - left}px`, height: `${bottom - top}px` });
    this.grid.selectInside([left, top, right, bottom], this.kept);
    const frame = this.grid.element.getBoundingClientRect();
    const speed = clientY < frame.top + EDGE ? -14 : clientY > frame.bottom - EDGE ? 14 : 0;
    cancelAnimationFrame(this.#timer);
    if (speed) this.#timer = requestAnimationFrame(() => this.#scroll(start, clientX, clientY, speed));
  }

  #scroll(start, clientX, clientY, speed) {
    const { element, canvas } = this.grid;
    const before = element.scrollTop;
    element.scrollTop += speed;
    if (element.scrollTop === before) return;
    const { left, top } = canvas.getBoundingClientRect();
    this.drawTo(start, [clientX - left, clientY - top], { clientX, clientY });
  }

  end() {
    cancelAnimationFrame(this.#timer);
    this.#element.remove();
  }
}

function newTile() {
  const element = make("div", { class: "tile", role: "option" });
  element.photo = make("img", { alt: "", decoding: "async", draggable: "false" });
  element.caption = make("span", { class: "caption" });
  element.chip = make("span", { class: "chip" });
  element.append(element.photo, element.chip, element.caption);
  return element;
}

function hideTile(element) {
  element.hidden = true;
  element.removeAttribute("id");
  element.setAttribute("aria-selected", "false");
}

function fillTile(element, texts, tile, { index, total, isSelected, isFocused }) {
  element.classList.toggle("focused", isFocused);
  element.classList.toggle("outlier", Boolean(texts?.isOutlier));
  element.classList.toggle("done", Boolean(texts?.chip));
  element.setAttribute("aria-selected", String(isSelected));
  element.setAttribute("aria-posinset", index + 1);
  element.setAttribute("aria-setsize", total);
  element.setAttribute("aria-label", texts?.name ?? "loading");
  element.caption.textContent = texts?.caption ?? "";
  element.chip.textContent = texts?.chip ?? "";
  if (tile) loadPhoto(element.photo, photo(tile.row));
  else cancelPhoto(element.photo);
}
