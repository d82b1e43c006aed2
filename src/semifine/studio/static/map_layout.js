// Layout of the class map in pixels: dots and names must not cover each other.

const ROUNDS = 60;
const MAX_PAIRS = 2e7; // limits the work for thousands of classes
const MAX_NAMES = 200;
const GAPS = [3, 14, 28, 44, 62, 80, 104, 132, 164, 200]; // between a dot and its name; larger gaps get a leader line
const DIRECTIONS = Array.from({ length: 16 }, (_, turn) => [Math.cos((turn * Math.PI) / 8), Math.sin((turn * Math.PI) / 8)]);

/**
 * Positions [x, y] in 0..1 that use the whole canvas: halfway between the given ones and their ranks on each axis.
 * Without this, distant clusters would be dense spots with empty space in between.
 */
export function spread(positions) {
  const axes = [0, 1].map((axis) => {
    const order = positions.map((_, index) => index).sort((a, b) => positions[a][axis] - positions[b][axis]);
    const rank = [];
    order.forEach((index, place) => (rank[index] = place / Math.max(1, positions.length - 1)));
    return rank;
  });
  return positions.map(([x, y], index) => [(x + axes[0][index]) / 2, (y + axes[1][index]) / 2]);
}

/** Pushes overlapping dots { x, y, r } apart and keeps them inside the frame [width, height], if there is one. */
export function separateDots(dots, frame) {
  const rounds = Math.min(ROUNDS, Math.floor(MAX_PAIRS / dots.length ** 2));
  for (let round = 0; round < rounds; round++) {
    let moved = false;
    for (let i = 0; i < dots.length; i++)
      for (let j = 0; j < i; j++) moved = pushApart(dots[i], dots[j]) || moved;
    if (!moved) break;
  }
  if (!frame) return;
  const [width, height] = frame;
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
