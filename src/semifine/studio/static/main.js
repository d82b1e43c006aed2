// Connects the pages, the keyboard shortcuts and the polling for changes of other people.

import { ANSWERS } from "./answers.js";
import { get, setRun, shownRun } from "./api.js";
import { searchClass } from "./class_search.js";
import { closeOnOutsideClick, find, keepFocus, make, repeatedError, toast } from "./dom.js";
import { listen } from "./keyboard.js";
import { LabelView, toggleLookAlikes } from "./label_view.js";
import { showOverview } from "./overview.js";
import { askName, clearNotices, noticeText, person, removeResolved, showName, showNotice } from "./people.js";
import { Queue } from "./queue.js";
import { Training } from "./training.js";
import { Zoom } from "./zoom.js";

const POLL_INTERVAL = 1500; // milliseconds
const PAGES = ["label", "overview", "train"];

const queue = new Queue();
const view = new LabelView(queue);
const zoom = new Zoom();
const filters = find("#filters");
let classNames = [];
let lastEvent = null;
let overviewShows = null; // run and last event of the overview

const training = new Training(async () => {
  await openRun();
  location.hash = "#label";
});

async function openRun() {
  const overview = await get("overview");
  setRun(overview.run);
  lastEvent ??= overview.last;
  classNames = overview.classes.map(({ name }) => name);
  find("#run").textContent = overview.run;
  document.title = `${overview.run} · semifine studio`;
  setOptions(filters.elements.class, classNames.map((name, id) => [id, name]));
  const clusters = overview.clusters.map((members, id) => [id, members.map((c) => classNames[c]).join(", ")]);
  setOptions(filters.elements.cluster, clusters);
  queue.filter = { ...queue.filter, class: "", cluster: "" };
  await view.load();
}

function setOptions(select, options) {
  const elements = options.map(([value, text]) => make("option", { value }, text.length > 60 ? text.slice(0, 58) + " …" : text));
  select.replaceChildren(make("option", { value: "" }, "all"), ...elements);
}

function setFilter(changes) {
  queue.filter = { ...queue.filter, state: "waiting", class: "", cluster: "", text: "", ...changes };
  for (const [name, value] of Object.entries(queue.filter)) filters.elements[name].value = value;
  location.hash = "#label";
  return view.load();
}

function readFilters({ target }) {
  target.blur(); // so that the keyboard shortcuts work again
  const filter = Object.fromEntries(new FormData(filters));
  const isNew = Object.entries(filter).some(([name, value]) => value !== String(queue.filter[name]));
  if (!isNew) return; // entering a search fires two events
  queue.filter = filter;
  view.load();
}

async function showPage() {
  const page = PAGES.includes(location.hash.slice(1)) ? location.hash.slice(1) : "label";
  for (const name of PAGES) find(`#${name}`).hidden = name !== page;
  for (const link of document.querySelectorAll("nav a"))
    if (link.hash === `#${page}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  scrollTo(0, 0); // the browser would scroll to the element that the hash names
  if (page === "overview") await updateOverview().catch((error) => toast(error.message, true));
}

async function updateOverview() {
  const overview = await showOverview(setFilter);
  if (!overview) return; // a newer request has replaced it
  overviewShows = eventOf(overview);
  showCounts(overview.counts);
}

const eventOf = ({ run, last }) => `${last} ${run}`;

const isShown = (page) => !find(`#${page}`).hidden;

async function poll() {
  try {
    const changes = await get("changes", { after: lastEvent });
    showCounts(changes.counts);
    training.show(changes.training, changes.counts);
    if (changes.run === shownRun()) {
      applyChanges(changes.images);
      lastEvent = changes.last;
    } else await openRun(); // another person has switched to a new model
    // Not only after a new event: the last request may have failed, or may have been older than the event.
    if (isShown("overview") && overviewShows !== eventOf(changes)) await updateOverview();
  } catch (error) {
    repeatedError(error.message);
  }
  setTimeout(poll, POLL_INTERVAL);
}

function applyChanges(images) {
  for (const [key, label] of Object.entries(images)) {
    const id = Number(key);
    queue.forget([id]);
    if (id === view.image?.id) {
      if (label.seen > view.image.seen) view.update(label);
    } else if (label.state === "waiting") queue.reopen([id]);
    else if (queue.isWaiting) queue.remove([id]);
    const text = noticeText(label, lastEvent);
    if (text) showNotice(id, text, label.state, () => goTo(id));
    else removeResolved(id, label.state);
  }
}

function goTo(id) {
  location.hash = "#label";
  return view.goTo(id);
}

function showCounts({ waiting, labeled, conflict }) {
  const element = find("#counts");
  const conflicts = make("a", { href: "#label", class: "conflicts", on: { click: () => setFilter({ state: "conflict" }) } }, `${conflict} in conflict`);
  const counts = make("p", {}, `${labeled} labeled, ${waiting} waiting`, ...(conflict ? [" · ", conflicts] : []));
  if (counts.textContent === element.textContent) return; // a screen reader would read it again
  keepFocus(element, () => element.replaceChildren(...counts.childNodes));
}

const actions = {
  ...Object.fromEntries(ANSWERS.map(({ kind }) => [kind, () => view.answer(kind)])),
  choose: (index) => view.choose(index),
  undo: () => view.undo(),
  look_alikes: toggleLookAlikes,
  next: () => view.next(),
  back: () => view.back(),
  other: () => view.answerFrom(() => searchClass(classNames)),
  all: () => setFilter({ state: queue.filter.state }),
  help: () => {
    closeOnOutsideClick(find("#help-dialog"));
    find("#help-dialog").showModal();
  },
  zoom: () => view.image && zoom.open(view.image.row),
};
const labelPageActions = Object.fromEntries(
  Object.entries(actions).map(([name, action]) => [name, (index) => isShown("label") && action(index)]),
);

/** Adds buttons, filter options and help texts for the answers. */
function addAnswers() {
  const button = ({ kind, button, keys }) =>
    make("button", { type: "button", "data-action": kind }, make("kbd", {}, keys[0].toUpperCase()), ` ${button}`);
  const help = ({ keys, help }) => {
    const names = keys.flatMap((key) => [" or ", make("kbd", {}, key.toUpperCase())]).slice(1);
    return [make("dt", {}, ...names), make("dd", {}, help)];
  };
  find("#actions [data-action=other]").after(...ANSWERS.map(button));
  find("#help-answers").after(...ANSWERS.flatMap(help));
  const states = ANSWERS.filter(({ isState }) => isState);
  filters.elements.state.append(...states.map(({ kind, name }) => make("option", { value: kind }, name)));
}

async function start() {
  addAnswers();
  listen(labelPageActions);
  find("#label").onclick = (event) => actions[event.target.closest("[data-action]")?.dataset.action]?.();
  find("#person").onclick = () => askName().then(clearNotices).then(view.load);
  filters.onsubmit = (event) => event.preventDefault();
  filters.onchange = readFilters;
  filters.elements.text.addEventListener("search", readFilters); // the clear button fires no other event
  addEventListener("hashchange", showPage);
  if (person()) showName();
  else await askName();
  await openRun();
  await showPage();
  await poll();
}

start().catch((error) => toast(error.message, true));
