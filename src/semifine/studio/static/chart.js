// A small line chart with axes and an interval around each point.

import { draw } from "./dom.js";

const LEFT = 44; // space for the numbers of the axes
const BOTTOM = 38;
const TOP = 10;
const RIGHT = 14;

/**
 * An SVG element. Values of y are percentages from 0 to 100.
 *
 * @param points {x, y, low, high}; low and high may be missing.
 * @param texts {title, x, y}: what a screen reader reads, and the names of the axes.
 */
export function lineChart(points, { title, x: nameX, y: nameY }, { width = 480, height = 210 } = {}) {
  const values = points.map(({ x }) => x);
  const [first, last] = [Math.min(...values), Math.max(...values)];
  const toX = (value) => LEFT + ((width - LEFT - RIGHT) * (value - first)) / (last - first || 1);
  const toY = (value) => TOP + (height - TOP - BOTTOM) * (1 - value / 100);
  const place = (x, y) => `${toX(x).toFixed(1)},${toY(y).toFixed(1)}`;
  const bounds = points.filter(({ low }) => low !== undefined && low !== null);
  const band = [...bounds.map(({ x, high }) => place(x, high)), ...bounds.toReversed().map(({ x, low }) => place(x, low))];
  const text = (x, y, anchor, content) => draw("text", { x, y, "text-anchor": anchor }, content);
  const horizontal = [0, 25, 50, 75, 100].map((value) => [
    draw("line", { class: "rule", x1: LEFT, x2: width - RIGHT, y1: toY(value), y2: toY(value) }),
    text(LEFT - 6, toY(value) + 4, "end", `${value}`),
  ]);
  const vertical = ticks(first, last).map((value) => [
    draw("line", { class: "tick", x1: toX(value), x2: toX(value), y1: toY(0), y2: toY(0) + 4 }),
    text(toX(value), toY(0) + 17, "middle", value.toLocaleString("en")),
  ]);
  return draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title, class: "chart" },
    horizontal, vertical,
    text((LEFT + width - RIGHT) / 2, height - 4, "middle", nameX),
    draw("text", { transform: `translate(12 ${(TOP + height - BOTTOM) / 2}) rotate(-90)`, "text-anchor": "middle" }, nameY),
    bounds.length > 1 && draw("polygon", { points: band.join(" ") }),
    bounds.length === points.length && points.length < 30 && bounds.map(({ x, low, high }) => draw("line", { class: "interval", x1: toX(x), x2: toX(x), y1: toY(low), y2: toY(high) })),
    points.length > 1 && draw("polyline", { points: points.map(({ x, y }) => place(x, y)).join(" ") }),
    points.length < 60 && points.map(({ x, y }) => draw("circle", { cx: toX(x), cy: toY(y), r: 2.5 })));
}

/** Up to five round numbers in a range. */
export function ticks(first, last) {
  if (first === last) return [first];
  const rough = (last - first) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].find((factor) => factor * power >= rough) * power);
  const all = [];
  for (let value = Math.ceil(first / step) * step; value <= last; value += step) all.push(value);
  return all.length > 1 ? all : [first, last];
}
