// Connects the pages, the keyboard shortcuts and the polling for changes of other people.

import { openAddress, readAddress } from "./address.js";
import { ANSWERS } from "./answers.js";
import { get, shownRun } from "./api.js";
import { searchClass } from "./class_search.js";
import { ClassesView } from "./classes_view.js";
import { closeOnOutsideClick, find, keepFocus, make, repeatedError, toast } from "./dom.js";
import { Filters } from "./filters.js";
import { GridView } from "./grid_view.js";
import { setUpImport } from "./import_form.js";
import { listen } from "./keyboard.js";
import { LabelView, toggleLookAlikes } from "./label_view.js";
import { showLive } from "./live.js";
import { showOverview } from "./overview.js";
import { askName, checkNotices, clearNotices, fixName, noticeText, person, removeResolved, showName, showNotice } from "./people.js";
import { Queue } from "./queue.js";
import { ReviewView } from "./review_view.js";
import { classNames, loadState, state } from "./state.js";
import { Training } from "./training.js";
import { Zoom } from "./zoom.js";

const POLL_INTERVAL = 1500; // milliseconds
const PAGES = ["label", "grid", "overview", "classes", "review", "train"];

const queue = new Queue();
const view = new LabelView(queue);
const zoom = new Zoom();
const grid = new GridView(zoom);
const review = new ReviewView((id) => goTo(id));
const classes = new ClassesView(() => updateClasses());
const filters = new Filters(find("#filters"), "label", { order: "informative" });
let lastEvent = null;
let shownModel = null; // version of the live model, and number of images
let shownClasses = null; // version of the list of classes
let overviewShows = null; // what the overview was made from

const training = new Training(async () => {
  await openRun();
  openAddress("label");
});

async function openRun() {
  const overview = await loadState();
  lastEvent ??= overview.last;
  shownClasses = null;
  find("#run").textContent = overview.run;
  document.title = `${overview.run} · semifine studio`;
  showRole();
  filters.setOptions();
  const { page, query } = readAddress();
  filters.show(page === "label" ? query : { ...filters.query, cluster: "" }); // other models have other clusters
  queue.filter = filters.values;
  await Promise.all([view.load(), grid.restart(), checkNotices()]);
}

/** Hides the pages and buttons that the role of the person does not include. */
function showRole() {
  document.body.dataset.role = state.role;
}

/** Follows a change of the list of classes. */
async function updateClasses() {
  await loadState();
  filters.setOptions();
  await grid.restart();
  classes.show();
  await checkNotices(); // merged classes settle conflicts
}

async function showPage() {
  const { page: asked, query } = readAddress();
  const page = PAGES.includes(asked) ? asked : "label";
  for (const name of PAGES) find(`#${name}`).hidden = name !== page;
  showLinks(page);
  scrollTo(0, 0); // the browser would scroll to the element that the hash names
  if (page === "label" && filters.show(query)) {
    queue.filter = filters.values;
    view.load();
  }
  try {
    if (page === "grid") await grid.open(query);
    if (page === "overview") await updateOverview();
    if (page === "classes") classes.show();
    if (page === "review") await review.show(query);
  } catch (error) {
    toast(error.message, true);
  }
  showLinks(page);
}

/** Marks the open page. The links of pages with filters keep the filters. */
function showLinks(page) {
  for (const link of document.querySelectorAll("nav a"))
    if (link.dataset.page === page) {
      link.setAttribute("aria-current", "page");
      link.href = location.hash || "#label";
    } else link.removeAttribute("aria-current");
}

async function updateOverview() {
  const overview = await showOverview(openLabel);
  if (!overview) return; // a newer request has replaced it
  overviewShows = overviewKey(overview);
  showCounts(overview.counts);
}

const overviewKey = ({ run, last, live }) => `${last} ${run} ${live?.model}`;

const isShown = (page) => !find(`#${page}`).hidden;

/** Opens the label page with filters. */
function openLabel(values) {
  if (!filters.open({ ...filters.defaults, ...values })) view.load();
}

async function poll() {
  try {
    const changes = await get("changes", { after: lastEvent });
    showCounts(changes.counts);
    training.show(changes.training, changes.counts);
    if (changes.run === shownRun()) {
      applyChanges(changes.images);
      lastEvent = changes.last;
    } else await openRun(); // another person has switched to a new model
    await followClasses(changes.classes);
    followModel(changes.live);
    // Not only after a new event: the last request may have failed, or may have been older than the event.
    if (isShown("overview") && overviewShows !== overviewKey(changes)) await updateOverview();
    if (isShown("review")) await review.follow(changes.last);
  } catch (error) {
    repeatedError(error.message);
  }
  setTimeout(poll, POLL_INTERVAL);
}

async function followClasses(version) {
  if (version === undefined || version === shownClasses) return;
  if (shownClasses !== null) await updateClasses();
  shownClasses = version;
}

/** Loads the rest of the queue after the live model has learned, or after images were added. */
function followModel(live) {
  state.live = live ?? null;
  showLive(state.live);
  if (!live) return;
  const model = `${shownRun()} ${live.model} ${live.images}`;
  if (shownModel !== null && model !== shownModel) view.refresh().catch((error) => repeatedError(error.message));
  shownModel = model;
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
  grid.applyChanges(images);
}

function goTo(id) {
  openAddress("label", filters.query);
  return view.goTo(id);
}

function showCounts({ waiting, labeled, conflict }) {
  const element = find("#counts");
  const conflicts = make("a", { href: "#label?state=conflict", class: "conflicts", on: { click: openConflicts } }, `${conflict} in conflict`);
  const counts = make("p", {}, `${labeled} labeled, ${waiting} waiting`, ...(conflict ? [" · ", conflicts] : []));
  if (counts.textContent === element.textContent) return; // a screen reader would read it again
  keepFocus(element, () => element.replaceChildren(...counts.childNodes));
}

function openConflicts(event) {
  event.preventDefault();
  openLabel({ state: "conflict" });
}

const labelActions = {
  ...Object.fromEntries(ANSWERS.map(({ kind }) => [kind, () => view.answer(kind)])),
  choose: (index) => view.choose(index),
  undo: () => view.undo(),
  look_alikes: toggleLookAlikes,
  next: () => view.next(),
  back: () => view.back(),
  other: () => view.answerFrom(() => searchClass(classNames(), { creates: true })),
  all: () => openLabel({ state: queue.filter.state }),
  help: openHelp,
  like: () => view.image && openAddress("grid", { like: view.image.id }),
  zoom: () => view.image && zoom.open(view.image.row),
};
const gridActions = {
  ...Object.fromEntries(ANSWERS.map(({ kind }) => [kind, () => grid.answer(kind)])),
  choose: (index) => grid.choose(index),
  first: () => grid.choose(0),
  undo: () => grid.undo(),
  other: () => grid.search(),
  confirm: () => grid.confirm(),
  like: () => grid.looksLike(),
  outliers: () => grid.outliers(),
  clear: () => grid.clear(),
  all: () => openAddress("grid"),
  help: openHelp,
  zoom: () => grid.enlarge(),
};

function currentActions() {
  if (isShown("label")) return labelActions;
  if (isShown("grid")) return gridActions;
  return isShown("classes") ? { undo: () => classes.undo(), help: openHelp } : { help: openHelp };
}

function openHelp() {
  const dialog = find("#help-dialog");
  for (const list of dialog.querySelectorAll("[data-page]")) list.hidden = !isShown(list.dataset.page);
  closeOnOutsideClick(dialog);
  dialog.showModal();
}

/** Adds buttons, filter options and help texts for the answers. */
function addAnswers() {
  const button = ({ kind, button, keys }) =>
    make("button", { type: "button", "data-action": kind }, make("kbd", {}, keys[0].toUpperCase()), ` ${button}`);
  const help = ({ keys, help }) => {
    const names = keys.flatMap((key) => [" or ", make("kbd", {}, key.toUpperCase())]).slice(1);
    return [make("dt", {}, ...names), make("dd", {}, help)];
  };
  find("#actions [data-action=other]").after(...ANSWERS.map(button));
  find("#grid-actions [data-action=other]").after(...ANSWERS.filter(({ isState }) => isState).map(button));
  find("#help-answers").after(...ANSWERS.flatMap(help));
  for (const form of document.querySelectorAll("#filters, #grid-filters"))
    form.elements.state.append(...ANSWERS.filter(({ isState }) => isState).map(({ kind, name }) => make("option", { value: kind }, name)));
}

function onClick(page, actions) {
  find(page).addEventListener("click", (event) => actions[event.target.closest("[data-action]")?.dataset.action]?.());
}

async function start() {
  addAnswers();
  listen(currentActions);
  onClick("#label", labelActions);
  onClick("#grid", gridActions);
  find("#person").onclick = () => askName().then(clearNotices).then(view.load);
  find("#help").onclick = openHelp;
  find("#filters-toggle").onclick = ({ target }) => {
    const isOpen = find("#filters").classList.toggle("open");
    target.setAttribute("aria-expanded", isOpen);
  };
  setUpImport(updateClasses);
  addEventListener("hashchange", showPage);
  const { person: owner } = await loadState();
  if (owner) fixName(owner);
  else if (person()) showName();
  else await askName();
  await openRun();
  await showPage();
  await poll();
}

start().catch((error) => toast(error.message, true));
