"use strict";
// Interactive curves and an interactive class tree. Without this script, the report shows the same numbers as static
// drawings.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const page = JSON.parse(document.getElementById("page-data").textContent);
  const hidden = new Set();
  const plots = [];
  let zoom = null;

  const draw = (name, attributes, parent) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    parent.append(element);
    return element;
  };
  const show = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : value.toFixed(value < 10 ? 2 : 1));

  // A round step that divides the range into about `wanted` parts.
  const ticks = (low, high, wanted) => {
    const rough = (high - low) / wanted || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    const found = [];
    for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) found.push(at);
    return found;
  };

  // Five to seven round ticks from 0 to the first one that is not below the top, as axis_ticks in style.py.
  const ticksUpTo = (top) => {
    const most = (top > 0 ? top : 1) / 3, power = 10 ** Math.floor(Math.log10(most));
    const step = [5, 2.5, 2, 1, 0.5].map((factor) => factor * power).find((size) => size < most);
    return Array.from({ length: Math.ceil((3 * most) / step - 1e-9) + 1 }, (_, place) => place * step);
  };

  class Plot {
    constructor(figure, curve) {
      this.curve = curve;
      this.box = figure.querySelector(".plot");
      this.tip = document.createElement("div");
      this.tip.className = "tip";
      this.tip.hidden = true;
      this.box.append(this.tip);
      this.box.addEventListener("pointermove", (event) => this.move(event));
      this.box.addEventListener("pointerdown", (event) => this.press(event));
      this.box.addEventListener("pointerup", (event) => this.release(event));
      this.box.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") this.leave(); });
      this.box.addEventListener("pointercancel", () => this.leave());
      this.box.addEventListener("dblclick", () => setZoom(null));
    }

    get lines() {
      return this.curve.lines.filter((line) => !hidden.has(line.run));
    }

    range() {
      const steps = this.curve.lines.flatMap((line) => [line.steps[0], line.steps.at(-1)]);
      const [low, high] = zoom ?? [Math.min(0, ...steps), Math.max(...steps)];
      const seen = this.lines.flatMap((line) => line.values.filter((_, at) => line.steps[at] >= low && line.steps[at] <= high));
      return { low, high, heights: ticksUpTo(Math.max(...seen, 0)) };
    }

    render() {
      this.box.querySelector("svg")?.remove();
      const width = Math.max(260, this.box.clientWidth), height = Math.round(Math.min(300, width * 0.62));
      const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" }, this.box);
      const ends = this.curve.lines.map((line) => `${page.runs[line.run].label} ends at ${show(line.values.at(-1))} ${this.curve.unit}`);
      svg.setAttribute("aria-label", `${this.curve.title} over training steps: ${ends.join("; ")}.`);
      const { low, high, heights } = this.range();
      const left = 48, right = width - 18, base = height - 38, ceiling = 10;
      this.x = (step) => left + ((step - low) / (high - low || 1)) * (right - left);
      this.step = (x) => low + ((x - left) / (right - left)) * (high - low);
      this.y = (value) => base - (value / heights.at(-1)) * (base - ceiling);
      this.edge = { left, right, base, ceiling, width };
      for (const at of heights) {
        draw("line", { x1: left, x2: right, y1: this.y(at), y2: this.y(at), class: "grid" }, svg);
        draw("text", { x: left - 6, y: this.y(at) + 4, "text-anchor": "end" }, svg).textContent = `${+at.toFixed(6)} ${this.curve.unit}`;
      }
      for (const at of ticks(low, high, width < 380 ? 3 : 5))
        draw("text", { x: this.x(at), y: base + 16, "text-anchor": "middle" }, svg).textContent = Math.round(at);
      draw("text", { x: (left + right) / 2, y: height - 5, "text-anchor": "middle" }, svg).textContent = "training step";
      for (const line of this.lines) this.renderLine(svg, line, low, high);
      this.cross = draw("line", { y1: ceiling, y2: base, class: "cross", visibility: "hidden" }, svg);
      this.chosen = draw("rect", { y: ceiling, height: base - ceiling, class: "chosen", visibility: "hidden" }, svg);
    }

    renderLine(svg, line, low, high) {
      const run = page.runs[line.run];
      const points = line.steps.map((step, at) => [step, line.values[at]]).filter(([step]) => step >= low && step <= high);
      const path = points.map(([step, value]) => `${this.x(step).toFixed(1)},${this.y(value).toFixed(1)}`).join(" ");
      const color = `var(--hue-${run.hue})`;
      draw("polyline", { points: path, stroke: color, "stroke-dasharray": run.dash, class: "line", "data-run": line.run }, svg);
      if (points.length <= 12)
        for (const [step, value] of points) draw("circle", { cx: this.x(step), cy: this.y(value), r: 2.6, fill: color }, svg);
    }

    at(event) {
      const box = this.box.getBoundingClientRect();
      const scale = this.edge.width / box.width;
      return Math.min(this.edge.right, Math.max(this.edge.left, (event.clientX - box.left) * scale));
    }

    move(event) {
      if (!this.lines.length) return;
      const x = this.at(event), step = this.step(x);
      if (this.from !== undefined) {
        this.chosen.setAttribute("visibility", "visible");
        this.chosen.setAttribute("x", Math.min(x, this.from));
        this.chosen.setAttribute("width", Math.abs(x - this.from));
      }
      this.cross.setAttribute("visibility", "visible");
      this.cross.setAttribute("x1", x);
      this.cross.setAttribute("x2", x);
      this.tip.replaceChildren(...this.tipLines(step));
      this.tip.hidden = false;
      const share = x / this.edge.width;
      this.tip.style.left = share < 0.55 ? `calc(${100 * share}% + 12px)` : "auto";
      this.tip.style.right = share < 0.55 ? "auto" : `calc(${100 - 100 * share}% + 12px)`;
    }

    tipLines(step) {
      const nearest = (line) => {
        let near = 0;
        line.steps.forEach((at, place) => { if (Math.abs(at - step) < Math.abs(line.steps[near] - step)) near = place; });
        return near;
      };
      const head = document.createElement("strong");
      head.textContent = `step ${this.lines[0].steps[nearest(this.lines[0])]}`;
      return [head, ...this.lines.map((line) => {
        const near = nearest(line);
        const row = document.createElement("span");
        const dot = document.createElement("i");
        dot.className = "dot";
        dot.style.background = `var(--hue-${page.runs[line.run].hue})`;
        row.append(dot, `${page.runs[line.run].label}: ${show(line.values[near])} ${this.curve.unit}`);
        return row;
      })];
    }

    // Touch screens have no hover: the values of a tap stay until the next tap.
    press(event) {
      if (!event.isPrimary || event.button !== 0) return;
      this.from = this.at(event);
      this.move(event);
    }

    release(event) {
      if (this.from === undefined) return;
      const [a, b] = [this.from, this.at(event)].sort((first, second) => first - second);
      this.from = undefined;
      if (b - a > 12) {
        this.leave();
        setZoom([this.step(a), this.step(b)]);
      } else this.chosen.setAttribute("visibility", "hidden");
    }

    leave() {
      this.from = undefined;
      this.tip.hidden = true;
      this.cross?.setAttribute("visibility", "hidden");
      this.chosen?.setAttribute("visibility", "hidden");
    }
  }

  const renderAll = () => plots.forEach((plot) => plot.render());
  const setZoom = (range) => {
    zoom = range;
    document.getElementById("zoom-out").hidden = range === null;
    renderAll();
  };

  document.querySelectorAll("figure[data-curve]").forEach((figure) =>
    plots.push(new Plot(figure, page.curves[figure.dataset.curve])));
  if (plots.length) {
    document.querySelectorAll(".legend button[data-run]").forEach((button) => {
      button.disabled = false;
      button.addEventListener("click", () => {
        const run = Number(button.dataset.run);
        if (!hidden.delete(run)) hidden.add(run);
        button.setAttribute("aria-pressed", String(!hidden.has(run)));
        renderAll();
      });
    });
    document.getElementById("zoom-out").addEventListener("click", () => setZoom(null));
    document.getElementById("curve-help").hidden = false;
    addEventListener("pointerdown", (event) => plots.forEach((plot) => { if (!plot.box.contains(event.target)) plot.leave(); }));
    let waiting;
    addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(renderAll, 80); });
    renderAll();
  }

  const tree = document.querySelector(".tree");
  if (tree) {
    const branches = [...tree.querySelectorAll(".branch")];
    const leaves = [...tree.querySelectorAll(".leaf")];
    const slider = document.getElementById("tree-k"), panel = document.getElementById("tree-panel");
    const photos = (label) => [...document.querySelectorAll(`#clusters img[data-class="${label}"]`)];

    const open = (first, last, title) => {
      leaves.forEach((leaf, place) => leaf.classList.toggle("chosen", place >= first && place <= last));
      branches.forEach((branch) => branch.classList.toggle("chosen", +branch.dataset.first >= first && +branch.dataset.last <= last));
      const head = document.createElement("h3");
      head.textContent = title;
      const list = document.createElement("div");
      list.className = "classes";
      list.style.setProperty("--photos", "2");
      for (const leaf of leaves.slice(first, last + 1).slice(0, 24)) {
        const figure = document.createElement("figure"), row = document.createElement("div"), name = document.createElement("figcaption");
        figure.className = "class";
        row.className = "photos";
        const seen = new Map(photos(leaf.dataset.class).map((image) => [image.src, image]));
        for (const image of [...seen.values()].slice(0, 2)) row.append(image.cloneNode());
        name.textContent = leaf.dataset.name;
        figure.append(row, name);
        list.append(figure);
      }
      panel.replaceChildren(head, list);
      if (last - first >= 24) panel.append(`and ${last - first - 23} more`);
    };

    const cut = (k) => {
      const kept = leaves.length - k;
      branches.forEach((branch) => branch.classList.toggle("cut", +branch.dataset.step >= kept));
      const joined = new Array(leaves.length).fill(false); // whether a leaf is in the group of the previous leaf
      branches.slice(0, kept).forEach((branch) => {
        for (let place = +branch.dataset.first + 1; place <= +branch.dataset.last; place++) joined[place] = true;
      });
      let group = -1, groups = 0, size = 0;
      leaves.forEach((leaf, place) => {
        if (!joined[place]) { group++; size = 0; }
        size++;
        if (size === 2) groups++;
        leaf.dataset.group = group % 2;
        leaf.classList.toggle("single", !joined[place] && !joined[place + 1]);
      });
      document.getElementById("tree-k-shown").textContent = `${k} groups, ${groups} of them with several classes`;
    };

    branches.forEach((branch) => {
      const choose = () => open(+branch.dataset.first, +branch.dataset.last, branch.dataset.title);
      branch.addEventListener("click", choose);
      branch.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(); });
    });
    leaves.forEach((leaf, place) => leaf.addEventListener("click", () => open(place, place, leaf.dataset.name)));
    slider.addEventListener("input", () => cut(+slider.value));
    document.getElementById("tree-controls").hidden = false;
    cut(+slider.value);
    const strongest = branches[0];
    if (strongest) open(+strongest.dataset.first, +strongest.dataset.last, strongest.dataset.title);
  }
})();
