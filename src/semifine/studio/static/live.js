// The line about the live model: its estimated accuracy, and a chart of the history.

import { lineChart } from "./chart.js";
import { find, make, plural } from "./dom.js";

const MIN_POINTS = 2;

/** "estimated accuracy 71 % (66 to 75 %) from 120 labels", in parts: a phone shows the middle one. */
function textParts({ accuracy, labels }) {
  const from = `from ${plural(labels, "label")}`;
  if (accuracy) return ["estimated accuracy ", `${round(accuracy.top1)} (${Math.round(accuracy.low)} to ${round(accuracy.high)})`, ` ${from}`];
  return labels ? ["", `learns ${from}`, "; accuracy is estimated when classes have more labels"] : ["", "learns as you label", ""];
}

export const liveText = (live) => textParts(live).join("");

const round = (value) => `${Math.round(value)}\u00a0%`;

/** A figure of the estimated accuracy over the labels; nothing for fewer than two points. */
export function liveChart({ history }) {
  const points = risingHistory(history).map(({ labels, top1, low, high }) => ({ x: labels, y: top1, low, high }));
  if (points.length < MIN_POINTS) return [];
  const title = `Estimated accuracy from ${points[0].y.toFixed(0)} % with ${points[0].x} labels to ${points.at(-1).y.toFixed(0)} % with ${points.at(-1).x} labels`;
  return [make("figure", { class: "curve" },
    lineChart(points, { title, x: "labels", y: "accuracy in %" }),
    make("figcaption", { class: "quiet" }, "Estimated by cross-validation on the labels. The band is the 95 % interval."))];
}

/** The newest estimate for each number of labels, which falls after an undo or a conflict. */
function risingHistory(history) {
  const rising = [];
  for (const entry of history.filter(({ top1 }) => top1 !== null)) {
    while (rising.length && rising.at(-1).labels >= entry.labels) rising.pop();
    rising.push(entry);
  }
  return rising;
}

let shown = "";

/** Shows the state of the live model in the header. */
export function showLive(live) {
  const button = find("#live");
  button.hidden = !live;
  if (!live) return;
  const now = JSON.stringify(live);
  if (now === shown) return; // a screen reader would read it again
  shown = now;
  const [before, value, after] = textParts(live);
  find("#live-text").replaceChildren(make("span", { class: "more" }, before), value, make("span", { class: "more" }, after));
  button.classList.toggle("fitting", live.fitting);
  find("#live-state").textContent = live.fitting ? "learning …" : "";
  const seconds = live.seconds ? `The last fit took ${live.seconds.toFixed(1)} s. ` : "";
  find("#live-panel").replaceChildren(
    make("p", {}, liveText(live)[0].toUpperCase() + liveText(live).slice(1) + "."),
    ...liveChart(live),
    make("p", { class: "quiet" }, `${seconds}The model behind the queue, the candidates and the grid is fitted again after every few answers. The Train page trains the whole network.`));
}
