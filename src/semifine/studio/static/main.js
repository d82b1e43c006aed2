// Puts the parts together: what is shown, what the keys do, what other people do meanwhile.

import { get, setRun, shownRun } from "./api.js";
import { chooseClass } from "./classes.js";
import { LabelQueue } from "./desk.js";
import { find, grumble, keepingFocus, leaveFromOutside, make, toast } from "./dom.js";
import { listen } from "./keyboard.js";
import { toggleLookAlikes } from "./look_alikes.js";
import { forgetNews, newsOf, tell } from "./news.js";
import { showOverview } from "./overview.js";
import { askName, person, show as showPerson } from "./person.js";
import { Queue } from "./queue.js";
import { Training } from "./training.js";
import { Zoom } from "./zoom.js";

const POLL = 1500; // milliseconds
const PARTS = ["label", "overview", "train"];

const queue = new Queue();
const desk = new LabelQueue(queue);
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
  await desk.load();
}

function offer(select, options) {
  const texts = options.map(([value, text]) => make("option", { value }, text.length > 60 ? text.slice(0, 58) + " …" : text));
  select.replaceChildren(make("option", { value: "" }, "all"), ...texts);
}

function filter(changes) {
  queue.wanted = { ...queue.wanted, state: "waiting", class: "", cluster: "", text: "", ...changes };
  for (const [name, value] of Object.entries(queue.wanted)) filters.elements[name].value = value;
  location.hash = "#label";
  return desk.load();
}

function takeFilters({ target }) {
  target.blur(); // so that the keys answer again
  const wanted = Object.fromEntries(new FormData(filters));
  const isNew = Object.entries(wanted).some(([name, value]) => value !== String(queue.wanted[name]));
  if (!isNew) return; // a search that is entered comes as two events
  queue.wanted = wanted;
  desk.load();
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

const isShown = (part) => !find(`#${part}`).hidden;

async function poll() {
  try {
    const news = await get("changes", { after: last });
    const isNew = news.last !== last || news.run !== shownRun();
    showCounts(news.counts);
    training.show(news.training, news.counts);
    if (news.run === shownRun()) {
      takeIn(news.images);
      last = news.last;
    } else await openRun(); // somebody else has switched to a new model
    if (isNew && isShown("overview")) await showOverview(filter);
  } catch (error) {
    grumble(error.message);
  }
  setTimeout(poll, POLL);
}

function takeIn(images) {
  for (const [key, standing] of Object.entries(images)) {
    const id = Number(key);
    queue.forget([id]);
    if (id === desk.image?.id) {
      if (standing.seen > desk.image.seen) desk.update(standing);
    } else if (standing.state === "waiting") queue.reopen([id]);
    else if (queue.isForWaiting) queue.drop([id]);
    const words = newsOf(standing, last);
    if (words) tell(id, words, () => look(id));
  }
}

function look(id) {
  location.hash = "#label";
  return desk.look(id);
}

function showCounts({ waiting, labeled, conflict }) {
  const place = find("#counts");
  const conflicts = make("a", { href: "#label", class: "conflicts", on: { click: () => filter({ state: "conflict" }) } }, `${conflict} in conflict`);
  const now = make("p", {}, `${labeled} labeled, ${waiting} waiting`, ...(conflict ? [" · ", conflicts] : []));
  if (now.textContent === place.textContent) return; // or it would be read out again and again
  keepingFocus(place, () => place.replaceChildren(...now.childNodes));
}

const actions = {
  choose: (place) => desk.choose(place),
  none_of_these: () => desk.say("none_of_these"),
  unsure: () => desk.say("unsure"),
  skip: () => desk.say("skip"),
  undo: () => desk.undo(),
  alike: toggleLookAlikes,
  next: () => desk.next(),
  back: () => desk.back(),
  other: () => desk.sayChosen(() => chooseClass(classNames)),
  all: () => filter({ state: queue.wanted.state }),
  help: () => {
    leaveFromOutside(find("#help-dialog"));
    find("#help-dialog").showModal();
  },
  zoom: () => desk.image && zoom.open(desk.image.row),
};
const onDesk = Object.fromEntries(
  Object.entries(actions).map(([name, action]) => [name, (place) => isShown("label") && action(place)]),
);

async function start() {
  listen(onDesk);
  find("#label").onclick = (event) => actions[event.target.closest("[data-action]")?.dataset.action]?.();
  find("#person").onclick = () => askName().then(forgetNews).then(desk.load);
  filters.onsubmit = (event) => event.preventDefault();
  filters.onchange = takeFilters;
  filters.elements.text.addEventListener("search", takeFilters); // its ✕ makes no other event
  addEventListener("hashchange", showPart);
  if (person()) showPerson();
  else await askName();
  await openRun();
  await showPart();
  await poll();
}

start().catch((error) => toast(error.message, true));
