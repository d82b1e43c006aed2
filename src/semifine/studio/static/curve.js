// Accuracy over the steps of a training.

import { draw, make } from "./dom.js";

/** A figure, or nothing where there is no course to see. */
export function curve(evaluations) {
  const split = evaluations.some((point) => point.split === "test") ? "test" : "val";
  const points = evaluations.filter((point) => point.split === split);
  if (points.length < 2) return [];
  const last = points.at(-1).step;
  const first = points[0].step;
  const values = points.map(({ top1 }) => top1);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const at = ({ step, top1 }) => `${(2 + (96 * (step - first)) / (last - first || 1)).toFixed(2)},${(28 - (24 * (top1 - low)) / (high - low || 1)).toFixed(2)}`;
  const figure = make("figure", { class: "curve" },
    draw("svg", { viewBox: "0 0 100 30", role: "img", "aria-label": `${split} accuracy from ${low.toFixed(1)} to ${high.toFixed(1)} %` },
      draw("polyline", { points: points.map(at).join(" ") })),
    make("figcaption", { class: "quiet" }, `${split} accuracy, ${low.toFixed(1)} to ${high.toFixed(1)} %`));
  return [figure];
}
