// The training page: start a training, watch its progress, and switch to its model.

import { post, shownRun } from "./api.js";
import { lineChart } from "./chart.js";
import { find, make, plural, whileBusy } from "./dom.js";

const FEW_IMAGES = 100; // with fewer, the interval is wider than 15 points

export class Training {
  #form = find("#train-form");
  #start = find("#train-form button");
  #drawn = "";
  #estimate = null; // seconds per step, and steps, of the last training

  constructor(onSwitch) {
    this.onSwitch = onSwitch;
    this.#form.onsubmit = (event) => {
      event.preventDefault();
      this.#post(this.#start, "Starting …", "train", this.#options());
    };
    this.#form.elements.iterations.oninput = () => this.#showEstimate();
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
    this.#showEstimate(status.estimate);
    find("#train-hint").hidden = labeled > 0;
    this.#start.disabled = labeled === 0 || this.#start.ariaBusy === "true";
    this.#showStatus(status);
  }

  #showEstimate(estimate) {
    this.#estimate = estimate ?? this.#estimate;
    const { step_seconds: seconds = null, iterations: before = null } = this.#estimate ?? {};
    const steps = Number(this.#form.elements.iterations.value) || before;
    find("#train-estimate").textContent = seconds && steps ? `${plural(steps, "step")} take ${duration(seconds * steps)}, at the speed of the last training.` : "";
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
            make("p", { class: "compare" }, accuracyPart(before, "before"), make("span", { "aria-hidden": "true" }, "→"), accuracyPart(after, "after")),
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

const accuracyPart = ({ top1, low, high, images, split }, when) =>
  make("span", { id: when },
    make("b", {}, `${top1.toFixed(1)} %`), ` ${when}`,
    make("span", { class: "quiet" }, images ? `${low.toFixed(0)} to ${high.toFixed(0)} %, ${plural(images, `${split} image`)}` : split));

function showProgress({ run, step, iterations, evaluations, seconds_left: left }) {
  const bar = find("#progress progress");
  bar.max = iterations ?? 1;
  if (step) bar.value = step;
  else bar.removeAttribute("value"); // an indeterminate bar
  const progress = `step ${step}${iterations ? ` of ${iterations}` : ""}`;
  const time = left ? `, ${duration(left)} left` : "";
  find("#progress p").textContent = step ? `Training ${run}: ${progress}${time}` : `Starting ${run} …`;
  find("#progress .evaluations").replaceChildren(...accuracyCurve(evaluations));
}

/** A figure of the accuracy over the steps, with intervals; nothing without evaluations. */
function accuracyCurve(evaluations) {
  const split = evaluations.some((point) => point.split === "test") ? "test" : "val";
  const points = evaluations.filter((point) => point.split === split);
  if (!points.length) return [];
  const { top1, low, high, images } = points.at(-1);
  const name = split === "test" ? "test images" : "validation images";
  const interval = images ? `, 95 % interval ${low.toFixed(0)} to ${high.toFixed(0)} %` : "";
  const title = `Top-1 accuracy on the ${images ?? ""} ${name} is ${top1.toFixed(0)} % at step ${points.at(-1).step}${interval}`;
  const chart = lineChart(points.map(({ step, ...point }) => ({ x: step, y: point.top1, low: point.low, high: point.high })), { title, x: "training steps", y: "accuracy in %" });
  const few = images && images < FEW_IMAGES ? ` ${plural(images, "image")} are few: only large changes show.` : "";
  return [make("figure", { class: "curve" }, chart, make("figcaption", { class: "quiet" }, `${title}.${few}`))];
}

/** "about 4 minutes". */
export function duration(seconds) {
  if (seconds < 90) return `about ${plural(Math.max(1, Math.round(seconds)), "second")}`;
  if (seconds < 90 * 60) return `about ${plural(Math.round(seconds / 60), "minute")}`;
  return `about ${plural(Math.round(seconds / 360) / 10, "hour")}`;
}
