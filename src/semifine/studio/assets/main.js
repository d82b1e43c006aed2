// Puts the parts together: what is shown, what the keys do, what other people do meanwhile.

import { get, setRun, shownRun } from "./api.js";
import { chooseClass } from "./classes.js";
import { Desk } from "./desk.js";
import { find, leaveFromOutside, make, toast } from "./dom.js";
import { listen } from "./keyboard.js";
import { forgetNews, newsOf, tell } from "./news.js";
import { showOverview } from "./overview.js";
import { askName, person, show as showPerson } from "./person.js";
import { Queue } from "./queue.js";
import { Training } from "./training.js";
import { Zoom } from "./zoom.js";

const POLL = 1500; // milliseconds
const PARTS = ["label", "overview", "train"];

const queue = new Queue();
const desk = new Desk(queue);
const zoom = new Zoom();
const filters = find("#filters");
let classNames = [];
let last = null; // the latest event that the page knows of

const training = new Training(async () => {
  await openRun();
  location.hash = "#label";
});

async function openRun() {
  const all = await get("overview");
  setRun(all.run);
  last ??= all.last;
  classNames = all.classes.map(({ name }) => name);
  find("#run").textContent = all.run;
  document.title = `${all.run} · semifine studio`;
  offer(filters.elements.class, classNames.map((name, id) => [id, name]));
  const named = all.clusters.map((members, id) => [id, members.map((c) => classNames[c]).join(", ")]);
  offer(filters.elements.cluster, named);
  queue.wanted = { ...queue.wanted, class: "", cluster: "" };
  await reload();
}

function offer(select, options) {
  const texts = options.map(([value, text]) => make("option", { value }, text.length > 60 ? text.slice(0, 58) + " …" : text));
  select.replaceChildren(make("option", { value: "" }, "all"), ...texts);
}

async function reload() {
  try {
    await queue.load();
    await desk.show();
  } catch (error) {
    toast(error.message, true);
  }
}

function filter(changes) {
  queue.wanted = { ...queue.wanted, state: "waiting", class: "", cluster: "", text: "", ...changes };
  for (const [name, value] of Object.entries(queue.wanted)) filters.elements[name].value = value;
  location.hash = "#label";
  return reload();
}

async function showPart() {
  const part = PARTS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "label";
  for (const name of PARTS) find(`#${name}`).hidden = name !== part;
  for (const link of document.querySelectorAll("nav a"))
    if (link.hash === `#${part}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  scrollTo(0, 0); // the address names a part, to which the browser would scroll
  if (part === "overview") await showOverview(filter).catch((error) => toast(error.message, true));
}

async function poll() {
  try {
    const news = await get("changes", { after: last });
    showCounts(news.counts);
    training.show(news.training, news.counts);
    if (news.run === shownRun()) {
      takeIn(news.images);
      last = news.last;
    } else await openRun(); // somebody else has switched to a new model
  } catch (error) {
    toast(error.message, true);
  }
  setTimeout(poll, POLL);
}

function takeIn(images) {
  queue.forget(Object.keys(images));
  for (const [id, standing] of Object.entries(images)) {
    if (Number(id) === desk.image?.id) {
      if (standing.seen > desk.image.seen) desk.update(standing);
    } else if (queue.wanted.state === "waiting" && standing.state !== "waiting") queue.drop([Number(id)]);
    const words = newsOf(standing, last);
    if (words) tell(id, words, () => look(Number(id)));
  }
}

async function look(id) {
  location.hash = "#label";
  queue.show(id);
  await desk.show();
}

function showCounts({ waiting, labelled, conflict }) {
  const conflicts = conflict
    ? make("a", { href: "#label", class: "conflicts", on: { click: () => filter({ state: "conflict" }) } }, `${conflict} in conflict`)
    : null;
  find("#counts").replaceChildren(`${labelled} labelled, ${waiting} waiting`, ...(conflicts ? [" · ", conflicts] : []));
}

async function anotherClass() {
  if (!desk.image) return;
  const name = await chooseClass(classNames);
  if (name) desk.say("label", name);
}

const actions = {
  choose: (place) => desk.choose(place),
  none_of_these: () => desk.say("none_of_these"),
  unsure: () => desk.say("unsure"),
  skip: () => desk.say("skip"),
  undo: () => desk.undo(),
  alike: () => desk.toggleLookAlikes(),
  next: () => desk.next(),
  back: () => desk.back(),
  other: anotherClass,
  help: () => {
    leaveFromOutside(find("#help-dialog"));
    find("#help-dialog").showModal();
  },
  zoom: () => desk.image && zoom.open(desk.image.row),
};
const onDesk = Object.fromEntries(
  Object.entries(actions).map(([name, action]) => [name, (place) => !find("#label").hidden && action(place)]),
);

async function start() {
  listen(onDesk);
  find("#actions").onclick = (event) => actions[event.target.closest("[data-action]")?.dataset.action]?.();
  find("#photo").onclick = actions.zoom;
  find("#person").onclick = () => askName().then(forgetNews).then(reload);
  filters.onsubmit = (event) => event.preventDefault();
  filters.onchange = (event) => {
    event.target.blur(); // so that the keys answer again
    queue.wanted = Object.fromEntries(new FormData(filters));
    reload();
  };
  addEventListener("hashchange", showPart);
  if (person()) showPerson();
  else await askName();
  await openRun();
  await showPart();
  await poll();
}

start().catch((error) => toast(error.message, true));
