// Train on with the labels, and see what they brought.

import { post, shownRun } from "./api.js";
import { curve } from "./curve.js";
import { find, make, plural, whileSaying } from "./dom.js";

export class Training {
  #form = find("#train-form");
  #start = find("#train-form button");
  #drawn = "";

  constructor(onSwitch) {
    this.onSwitch = onSwitch;
    this.#form.onsubmit = (event) => {
      event.preventDefault();
      this.#post(this.#start, "Starting …", "train", this.#wishes());
    };
    find("#stop").onclick = ({ target }) => this.#post(target, "Stopping …", "stop");
  }

  #post = (button, words, name, body) =>
    whileSaying(button, words, async () => this.#showStatus(await post(name, body)));

  #wishes() {
    const { from_weights: weights, iterations: steps } = this.#form.elements;
    return { from_weights: weights.checked, iterations: steps.value ? Number(steps.value) : null };
  }

  show(status, { labeled, conflict }) {
    find("#to-learn").textContent =
      `${plural(labeled, "label")} will join the labeled images` +
      (conflict ? `; ${plural(conflict, "image")} in conflict will not.` : ".");
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

  #outcome({ state, before, after, run, message, evaluations }) {
    if (message) return [make("p", { class: state === "failed" && "failed" }, message)];
    if (state !== "finished") return [];
    const numbers =
      before && after
        ? [
            make("p", { class: "compare" },
              make("span", {}, make("b", {}, `${before.top1.toFixed(1)} %`), " before"), " → ",
              make("span", { id: "after" }, make("b", {}, `${after.top1.toFixed(1)} %`), " after"),
            ),
            make("p", { class: "quiet" }, `Top-1 accuracy on ${after.split} images. Run folder: ${run}`),
          ]
        : [make("p", {}, `Finished: ${run}. There are no test or validation images to measure it on.`)];
    return [...numbers, ...curve(evaluations), run === shownRun() ? make("p", {}, "You are labeling with this model.") : this.#use()];
  }

  #use() {
    const use = async () => {
      await post("use");
      await this.onSwitch();
    };
    const start = ({ target }) => whileSaying(target, "Looking at all images …", use);
    return make("button", { type: "button", class: "main", id: "use", on: { click: start } }, "Go on labeling with the new model");
  }
}

function showProgress({ run, step, iterations, evaluations }) {
  const bar = find("#progress progress");
  bar.max = iterations ?? 1;
  if (step) bar.value = step;
  else bar.removeAttribute("value"); // nothing is known yet, but it moves
  const far = `step ${step}${iterations ? ` of ${iterations}` : ""}`;
  find("#progress p").textContent = step ? `Training ${run}: ${far}` : `Starting ${run} …`;
  find("#progress .on-the-way").replaceChildren(...curve(evaluations));
}
