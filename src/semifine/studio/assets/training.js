// Train on with the labels, and see what they brought.

import { post } from "./api.js";
import { draw, find, make, plural, toast } from "./dom.js";

export class Training {
  #drawn = "";

  constructor(onSwitch) {
    this.onSwitch = onSwitch;
  }

  show(status, counts) {
    const now = JSON.stringify([status, counts.labelled]);
    if (now === this.#drawn) return;
    this.#drawn = now;
    const parts = [
      make("h2", {}, "Train on with these labels"),
      make(
        "p",
        {},
        `${plural(counts.labelled, "label")} will join the labelled images`,
        counts.conflict ? `; ${plural(counts.conflict, "image")} in conflict will not.` : ".",
        " The new run gets a folder of its own; the old one stays as it is. ",
        make("a", { href: "labels.csv", download: "" }, "Save the labels as CSV"),
      ),
      status.state === "running" ? this.#running(status) : this.#form(counts),
      this.#outcome(status),
    ];
    find("#train").replaceChildren(...parts.filter(Boolean));
  }

  #form(counts) {
    const weights = make("input", { type: "checkbox", name: "from_weights", checked: true });
    const steps = make("input", { type: "number", name: "iterations", min: 1, placeholder: "as before", size: 9 });
    const start = async (event) => {
      event.preventDefault();
      try {
        await post("train", { from_weights: weights.checked, iterations: steps.value ? Number(steps.value) : null });
      } catch (error) {
        toast(error.message, true);
      }
    };
    return make(
      "form",
      { id: "train-form", on: { submit: start } },
      make("label", {}, weights, " begin with what this model has learnt"),
      make("label", {}, "Steps ", steps),
      make("button", { class: "main", disabled: counts.labelled === 0 }, "Train"),
    );
  }

  #running({ run, step, iterations, evaluations }) {
    return make(
      "div",
      { id: "progress" },
      make("p", {}, `Training ${run}: step ${step}${iterations ? ` of ${iterations}` : ""}`),
      make("progress", { max: iterations ?? 1, value: step, "aria-label": "Progress of the training" }),
      curve(evaluations),
      make("button", { type: "button", on: { click: () => post("stop") } }, "Stop"),
    );
  }

  #outcome({ state, before, after, run, message, evaluations }) {
    if (message) return make("p", { class: state === "failed" ? "failed" : "" }, message);
    if (state !== "finished") return null;
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
    const use = async (event) => {
      event.target.disabled = true;
      event.target.textContent = "Looking at all images …";
      try {
        await post("use");
        await this.onSwitch();
      } catch (error) {
        toast(error.message, true);
      }
    };
    return make("div", { id: "outcome" }, numbers, curve(evaluations),
      make("button", { type: "button", class: "main", id: "use", on: { click: use } }, "Go on labelling with the new model"));
  }
}

/** Accuracy over the steps of a training. */
function curve(evaluations) {
  const split = evaluations.some((point) => point.split === "test") ? "test" : "val";
  const points = evaluations.filter((point) => point.split === split);
  if (points.length < 2) return null;
  const last = points.at(-1).step;
  const first = points[0].step;
  const values = points.map(({ top1 }) => top1);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const at = ({ step, top1 }) => `${(2 + (96 * (step - first)) / (last - first || 1)).toFixed(2)},${(28 - (24 * (top1 - low)) / (high - low || 1)).toFixed(2)}`;
  return make("figure", { class: "curve" },
    draw("svg", { viewBox: "0 0 100 30", role: "img", "aria-label": `${split} accuracy from ${low.toFixed(1)} to ${high.toFixed(1)} %` },
      draw("polyline", { points: points.map(at).join(" ") })),
    make("figcaption", { class: "quiet" }, `${split} accuracy, ${low.toFixed(1)} to ${high.toFixed(1)} %`));
}
