// The map of the classes: similar classes are close together, lines join confused classes.

import { draw, make, plural } from "./dom.js";

export const HUES = 8;
const EDGE = 26;
const FONT_SIZE = 12; // pixels; the map is drawn for the width of the window
const MANY_CLASSES = 80; // maps with more classes have smaller dots

/** A figure. With a known width it is drawn at once, so that the content below it does not move. */
export function classMap(overview, filter, width = 0) {
  const figure = make("figure", { id: "map" }, width ? drawMap(overview, filter, width) : []);
  let drawn = width;
  new ResizeObserver(([{ contentRect }]) => {
    if (Math.abs(contentRect.width - drawn) < 1) return;
    drawn = contentRect.width;
    figure.replaceChildren(...drawMap(overview, filter, drawn));
  }).observe(figure);
  return figure;
}

function drawMap({ classes, pairs }, filter, width) {
  const height = Math.max(0.46 * width, 640 - 0.2 * width); // a narrow map needs more height for the names
  const dots = classDots(classes, width, height);
  const highest = Math.max(1, ...pairs.map(([, , count]) => count));
  const lines = pairs.map(([first, second]) => [dots[first].x, dots[first].y, dots[second].x, dots[second].y]);
  const boxes = placeNames(dots, lines, { width, height, lineHeight: FONT_SIZE + 3 });
  const unnamed = boxes.filter((box) => !box).length;
  const line = ([x1, y1, x2, y2], properties) => draw("line", { x1, y1, x2, y2, ...properties });
  const svg = draw(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Map of the classes" },
    lines.map((ends, index) => line(ends, { class: "pair", "stroke-width": 1.5 + (5 * pairs[index][2]) / highest })),
    boxes.filter((box) => box?.leader).map(({ leader }) => line(leader, { class: "leader" })),
    classes.map((entry, id) => drawDot(entry, dots[id], () => filter({ class: id }))),
    boxes.map((box, id) => box && draw("text", { x: box.left, y: box.bottom - 4 }, classes[id].name)),
  );
  const caption =
    "Similar classes are close together, and lines join confused classes. " +
    "Larger dots have more uncertain images. Colors show clusters.";
  const hidden = unnamed ? ` ${plural(unnamed, "name does", "names do")} not fit; see the clusters below.` : "";
  return [svg, make("figcaption", { class: "quiet" }, caption + hidden)];
}

function classDots(classes, width, height) {
  const highest = Math.max(1e-9, ...classes.map(({ uncertainty }) => uncertainty));
  const size = classes.length > MANY_CLASSES ? 0.6 : 1;
  const canvas = document.createElement("canvas").getContext("2d");
  canvas.font = `${FONT_SIZE}px system-ui, sans-serif`;
  const dots = classes.map(({ name, uncertainty, position: [x, y] }) => ({
    x: EDGE + x * (width - 2 * EDGE),
    y: EDGE + y * (height - 2 * EDGE),
    r: size * (4 + 6 * Math.sqrt(uncertainty / highest)),
    width: canvas.measureText(name).width + 4,
    priority: uncertainty,
  }));
  separateDots(dots, width, height);
  return dots;
}

const drawDot = ({ name, cluster, waiting }, { x, y, r }, select) =>
  draw(
    "a",
    { href: "#label", "aria-label": name, on: { click: select } },
    draw("title", {}, `${name}: ${waiting} waiting`),
    draw("circle", { cx: x, cy: y, r, class: `hue-${cluster % HUES}` }),
  );

// Layout in pixels: dots and names must not cover each other.

const ROUNDS = 60;
const MAX_PAIRS = 2e7; // limits the work for thousands of classes
const MAX_NAMES = 200;
const GAPS = [3, 14, 28, 44, 62, 80, 104, 132, 164, 200]; // between a dot and its name; larger gaps get a leader line
const DIRECTIONS = Array.from({ length: 16 }, (_, turn) => [Math.cos((turn * Math.PI) / 8), Math.sin((turn * Math.PI) / 8)]);

/** Pushes overlapping dots { x, y, r } apart and keeps them inside the frame. */
function separateDots(dots, width, height) {
  const rounds = Math.min(ROUNDS, Math.floor(MAX_PAIRS / dots.length ** 2));
  for (let round = 0; round < rounds; round++) {
    let moved = false;
    for (let i = 0; i < dots.length; i++)
      for (let j = 0; j < i; j++) moved = pushApart(dots[i], dots[j]) || moved;
    if (!moved) break;
  }
  for (const dot of dots) {
    dot.x = Math.min(Math.max(dot.x, dot.r), width - dot.r);
    dot.y = Math.min(Math.max(dot.y, dot.r), height - dot.r);
  }
}

function pushApart(a, b) {
  const [dx, dy] = [a.x - b.x, a.y - b.y];
  const distance = Math.hypot(dx, dy);
  const overlapping = a.r + b.r + 2 - distance;
  if (overlapping <= 0) return false;
  const [ux, uy] = distance > 0.01 ? [dx / distance, dy / distance] : [1, 0];
  a.x += (ux * overlapping) / 2;
  a.y += (uy * overlapping) / 2;
  b.x -= (ux * overlapping) / 2;
  b.y -= (uy * overlapping) / 2;
  return true;
}

/**
 * A box for the name of each dot { x, y, r, width, priority }, highest priority first; null if there is no space.
 * Names cover no dot, no other name and no leader line. They avoid `lines` [x1, y1, x2, y2] if possible.
 */
export function placeNames(dots, lines, { width, height, lineHeight }) {
  const boxes = dots.map(() => null);
  const taken = dots.map(({ x, y, r }) => ({ left: x - r, right: x + r, top: y - r, bottom: y + r }));
  const leaders = [];
  const order = dots.map((_, id) => id).sort((a, b) => dots[b].priority - dots[a].priority);
  for (const id of order.slice(0, MAX_NAMES)) {
    const isFree = (box) =>
      box.left >= 2 && box.right <= width - 2 && box.top >= 2 && box.bottom <= height - 2 &&
      !taken.some((other) => overlap(box, other)) && !leaders.some((leader) => crosses(leader, box)) &&
      !taken.some((other, owner) => owner !== id && box.leader && crosses(box.leader, other));
    const free = GAPS.map((gap) => boxesAround(dots[id], gap, lineHeight).filter(isFree)).find((boxes) => boxes.length);
    if (!free) continue;
    const crossed = free.map((box) => lines.filter((line) => crosses(line, box)).length);
    const best = free[crossed.indexOf(Math.min(...crossed))];
    boxes[id] = best;
    taken.push(best);
    if (best.leader) leaders.push(best.leader);
  }
  return boxes;
}

/** Boxes in all directions around a dot. */
function boxesAround({ x, y, r, width }, gap, height) {
  return DIRECTIONS.map(([dx, dy]) => {
    const [px, py] = [x + dx * (r + gap), y + dy * (r + gap)]; // the point of the box that is nearest to the dot
    const left = px - (width * (1 - dx)) / 2;
    const top = py - (height * (1 - dy)) / 2;
    const leader = gap > GAPS[0] ? [x + dx * r, y + dy * r, px, py] : null;
    return { left, right: left + width, top, bottom: top + height, leader };
  });
}

const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;

/** Whether a line segment crosses a box (Liang-Barsky clipping). */
function crosses([x1, y1, x2, y2], { left, right, top, bottom }) {
  let [from, to] = [0, 1];
  for (const [start, step, low, high] of [[x1, x2 - x1, left, right], [y1, y2 - y1, top, bottom]]) {
    if (step === 0) {
      if (start <= low || start >= high) return false;
      continue;
    }
    const [first, second] = [(low - start) / step, (high - start) / step];
    from = Math.max(from, Math.min(first, second));
    to = Math.min(to, Math.max(first, second));
  }
  return from < to;
}
