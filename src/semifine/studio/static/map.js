// The classes on a plane: those that look alike lie close, those that are confused are joined.

import { draw, make, plural } from "./dom.js";
import { placeNames, spread } from "./placing.js";

export const HUES = 8;
const EDGE = 26;
const LETTER = 12; // pixels, at every width: the map is drawn for the window it is in
const MANY = 80; // from so many classes on dots are smaller

/** For a width that is known already it is there at once, so that nothing below it moves. */
export function map(all, filter, width = 0) {
  const figure = make("figure", { id: "map" }, width ? view(all, filter, width) : []);
  let drawn = width;
  new ResizeObserver(([{ contentRect }]) => {
    if (Math.abs(contentRect.width - drawn) < 1) return;
    drawn = contentRect.width;
    figure.replaceChildren(...view(all, filter, drawn));
  }).observe(figure);
  return figure;
}

function view({ classes, pairs }, filter, width) {
  const height = Math.max(0.46 * width, 640 - 0.2 * width); // names need the more height the narrower it is
  const dots = dotsOf(classes, width, height);
  const strongest = Math.max(1, ...pairs.map(([, , count]) => count));
  const lines = pairs.map(([first, second]) => [dots[first].x, dots[first].y, dots[second].x, dots[second].y]);
  const boxes = placeNames(dots, lines, { width, height, letter: LETTER + 3 });
  const unnamed = boxes.filter((box) => !box).length;
  const line = ([x1, y1, x2, y2], properties) => draw("line", { x1, y1, x2, y2, ...properties });
  const svg = draw(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Map of the classes" },
    lines.map((ends, place) => line(ends, { class: "pair", "stroke-width": 1.5 + (5 * pairs[place][2]) / strongest })),
    boxes.filter((box) => box?.join).map(({ join }) => line(join, { class: "join" })),
    classes.map((of, id) => dot(of, dots[id], () => filter({ class: id }))),
    boxes.map((box, id) => box && draw("text", { x: box.left, y: box.bottom - 4 }, classes[id].name)),
  );
  const explained = "The larger a dot, the more doubt there is about the images that wait in its class. Colors are clusters.";
  const rest = unnamed ? ` For want of room ${plural(unnamed, "name stands", "names stand")} in the clusters below alone.` : "";
  return [svg, make("figcaption", { class: "quiet" }, explained + rest)];
}

function dotsOf(classes, width, height) {
  const most = Math.max(1e-9, ...classes.map(({ doubt }) => doubt));
  const size = classes.length > MANY ? 0.6 : 1;
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `${LETTER}px system-ui, sans-serif`;
  const dots = classes.map(({ name, doubt, position: [x, y] }) => ({
    x: EDGE + x * (width - 2 * EDGE),
    y: EDGE + y * (height - 2 * EDGE),
    r: size * (4 + 6 * Math.sqrt(doubt / most)),
    width: pen.measureText(name).width + 4,
    worth: doubt,
  }));
  spread(dots, width, height);
  return dots;
}

const dot = ({ name, cluster, waiting }, { x, y, r }, pick) =>
  draw(
    "a",
    { href: "#label", "aria-label": name, on: { click: pick } },
    draw("title", {}, `${name}: ${waiting} waiting`),
    draw("circle", { cx: x, cy: y, r, class: `hue-${cluster % HUES}` }),
  );
