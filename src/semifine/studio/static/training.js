// The training page: start a training, watch its progress, and switch to its model.

import { post, shownRun } from "./api.js";
import { draw, find, make, plural, whileBusy } from "./dom.js";

export class Training {
  #form = find("#train-form");
  #start = find("#train-form button");
  #drawn = "";

  constructor(onSwitch) {
    this.onSwitch = onSwitch;
    this.#form.onsubmit = (event) => {
      event.preventDefault();
      this.#post(this.#start, "Starting …", "train", this.#options());
    };
    find("#stop").onclick = ({ target }) => this.#post(target, "Stopping …", "stop");
  }

  #post = (button, text, name, body) => whileBusy(button, text, async () => this.#showStatus(await post(name, body)));

  #options() {
    const { from_weights: weights, iterations: steps } = this.#form.elements;
    return { from_weights: weights.checked, iterations: steps.value ? Number(steps.value) : null };
  }

  show(status, { labeled, conflict }) {
    find("#new-labels").textContent =
      `${plural(labeled, "label")} will be added to the training set` +
      (conflict ? `, and ${plural(conflict, "image")} in conflict left out.` : ".");
    find("#train-hint").hidden = labeled > 0;
    this.#start.disabled = labeled === 0 || this.#start.ariaBusy === "true";
    this.#showStatus(status);
  }

  #showStatus(status) {
    const now = JSON.stringify([status, shownRun()]);
    if (now === this.#drawn) return;
    this.#drawn = now;
    const isRunning = status.state === "running";
    this.#form.hidden = isRunning;
    find("#progress").hidden = !isRunning;
    if (isRunning) showProgress(status);
    find("#outcome").replaceChildren(...this.#outcome(status));
  }

  #outcome({ state, before, after, difference, run, message, evaluations }) {
    if (message) return [make("p", { class: state === "failed" && "failed" }, message)];
    if (state !== "finished") return [];
    const numbers =
      before && after
        ? [
            make("p", { class: "compare" },
              make("span", {}, make("b", {}, `${before.top1.toFixed(1)} %`), " before"), " → ",
              make("span", { id: "after" }, make("b", {}, `${after.top1.toFixed(1)} %`), " after"),
            ),
            make("p", { id: "difference" }, difference || "The two accuracies were measured on different images."),
            make("p", { class: "quiet" }, `Top-1 accuracy, before (${before.split}): ${before.text}; ` +
              `after (${after.split}): ${after.text}. Run folder: ${run}`),
          ]
        : [make("p", {}, `Finished: ${run}. There are no test or validation images to measure accuracy.`)];
    return [...numbers, ...accuracyCurve(evaluations), run === shownRun() ? make("p", {}, "The studio uses this model.") : this.#switchButton()];
  }

  #switchButton() {
    const switchModel = async () => {
      await post("switch");
      await this.onSwitch();
    };
    const start = ({ target }) => whileBusy(target, "Predicting all images …", switchModel);
    return make("button", { type: "button", class: "main", id: "switch", on: { click: start } }, "Use the new model");
  }
}

function showProgress({ run, step, iterations, evaluations }) {
  const bar = find("#progress progress");
  bar.max = iterations ?? 1;
  if (step) bar.value = step;
  else bar.removeAttribute("value"); // an indeterminate bar
  const progress = `step ${step}${iterations ? ` of ${iterations}` : ""}`;
  find("#progress p").textContent = step ? `Training ${run}: ${progress}` : `Starting ${run} …`;
  find("#progress .evaluations").replaceChildren(...accuracyCurve(evaluations));
}

/** A figure of the accuracy over the steps; nothing for fewer than two evaluations. */
function accuracyCurve(evaluations) {
  const split = evaluations.some((point) => point.split === "test") ? "test" : "val";
  const points = evaluations.filter((point) => point.split === split);
  if (points.length < 2) return [];
  const last = points.at(-1).step;
  const first = points[0].step;
  const values = points.map(({ top1 }) => top1);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const x = ({ step }) => (2 + (96 * (step - first)) / (last - first || 1)).toFixed(2);
  const y = ({ top1 }) => (28 - (26 * top1) / 100).toFixed(2); // from 0 to 100 %, so that chance does not look like progress
  const range = `${low.toFixed(1)} to ${high.toFixed(1)} %`;
  const figure = make("figure", { class: "curve" },
    draw("svg", { viewBox: "0 0 100 30", role: "img", "aria-label": `${split} accuracy from ${range}` },
      draw("polyline", { points: points.map((point) => `${x(point)},${y(point)}`).join(" ") })),
    make("figcaption", { class: "quiet" }, `${split} accuracy, ${range}`));
  return [figure];
}
