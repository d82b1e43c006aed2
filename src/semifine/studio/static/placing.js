// Where dots and their names go on a map, in pixels, so that they do not cover each other.

const ROUNDS = 60;
const MOST_WORK = 2e7; // pairs of dots; thousands of classes stay where they are
const MOST_NAMES = 200;
const GAPS = [3, 14, 28, 44, 62, 80, 104, 132, 164, 200]; // between a dot and its name; beyond the first a line joins them
const DIRECTIONS = Array.from({ length: 16 }, (_, turn) => [Math.cos((turn * Math.PI) / 8), Math.sin((turn * Math.PI) / 8)]);

/** Pushes dots { x, y, r } apart that overlap, within a frame. */
export function spread(dots, width, height) {
  const rounds = Math.min(ROUNDS, Math.floor(MOST_WORK / dots.length ** 2));
  for (let round = 0; round < rounds; round++) {
    let touched = false;
    for (let i = 0; i < dots.length; i++)
      for (let j = 0; j < i; j++) touched = pushApart(dots[i], dots[j]) || touched;
    if (!touched) break;
  }
  for (const dot of dots) {
    dot.x = Math.min(Math.max(dot.x, dot.r), width - dot.r);
    dot.y = Math.min(Math.max(dot.y, dot.r), height - dot.r);
  }
}

function pushApart(a, b) {
  const [dx, dy] = [a.x - b.x, a.y - b.y];
  const distance = Math.hypot(dx, dy);
  const missing = a.r + b.r + 2 - distance;
  if (missing <= 0) return false;
  const [ux, uy] = distance > 0.01 ? [dx / distance, dy / distance] : [1, 0];
  a.x += (ux * missing) / 2;
  a.y += (uy * missing) / 2;
  b.x -= (ux * missing) / 2;
  b.y -= (uy * missing) / 2;
  return true;
}

/**
 * A box for the name of each dot { x, y, r, width, worth }, the most worth first; null where there is no room.
 * Names cover no dot, no other name and no line to one; `lines` [x1, y1, x2, y2] they avoid where they can.
 */
export function placeNames(dots, lines, { width, height, letter }) {
  const boxes = dots.map(() => null);
  const taken = dots.map(({ x, y, r }) => ({ left: x - r, right: x + r, top: y - r, bottom: y + r }));
  const joins = [];
  const order = dots.map((_, id) => id).sort((a, b) => dots[b].worth - dots[a].worth);
  for (const id of order.slice(0, MOST_NAMES)) {
    const isFree = (box) =>
      box.left >= 2 && box.right <= width - 2 && box.top >= 2 && box.bottom <= height - 2 &&
      !taken.some((other) => overlap(box, other)) && !joins.some((join) => crosses(join, box)) &&
      !taken.some((other, owner) => owner !== id && box.join && crosses(box.join, other));
    const free = GAPS.map((gap) => ringOf(dots[id], gap, letter).filter(isFree)).find((boxes) => boxes.length);
    if (!free) continue;
    const crossed = free.map((box) => lines.filter((line) => crosses(line, box)).length);
    const best = free[crossed.indexOf(Math.min(...crossed))];
    boxes[id] = best;
    taken.push(best);
    if (best.join) joins.push(best.join);
  }
  return boxes;
}

/** Boxes around a dot at some distance. */
function ringOf({ x, y, r, width }, gap, height) {
  return DIRECTIONS.map(([dx, dy]) => {
    const [px, py] = [x + dx * (r + gap), y + dy * (r + gap)]; // where the box begins, seen from the dot
    const left = px - (width * (1 - dx)) / 2;
    const top = py - (height * (1 - dy)) / 2;
    const join = gap > GAPS[0] ? [x + dx * r, y + dy * r, px, py] : null;
    return { left, right: left + width, top, bottom: top + height, join };
  });
}

const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;

/** Whether a line runs through a box: it is cut at the four sides, and something is left (Liang and Barsky). */
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
