// The grid page: photos of one class, cluster or group as tiles. One key names all selected tiles.

import { openAddress } from "./address.js";
import { answerName } from "./answers.js";
import { get, photo, post, shownRun } from "./api.js";
import { createClass, searchClass } from "./class_search.js";
import { find, keepFocus, make, openDialog, percent, plural, toast } from "./dom.js";
import { apiQuery, Filters } from "./filters.js";
import { person } from "./people.js";
import { classNamed, classNames, classOf, state } from "./state.js";
import { TileGrid } from "./tile_grid.js";
import { TileList } from "./tile_list.js";

const MAX_TILES = 1000; // tiles of one answer
const MAX_NAMES = 9; // one per digit key
const NARROW = 600; // pixels: on a phone, three tiles fit beside each other
const SMALL_TILE = 104;
const NUM_NEIGHBORS = 300;
const OUTLIER = 0.5; // three standard deviations from the center of the class

export class GridView {
  #names = []; // classes of the digit keys
  #like = null; // the image whose neighbors are shown
  #isBusy = false;
  #isOpen = false;

  constructor(zoom) {
    this.zoom = zoom;
    this.filters = new Filters(find("#grid-filters"), "grid", { order: "confidence" });
    const onError = (error) => toast(error.message, true);
    this.list = new TileList(this.#fetch, () => this.grid.visible, () => this.grid.changed(), onError);
    this.grid = new TileGrid(find("#grid-scroll"), this.list, {
      describe: (tile) => this.#describe(tile),
      onSelect: () => this.#showSelection(),
      limit: MAX_TILES,
    });
    this.grid.onLimit = () => toast(`One answer names at most ${MAX_TILES.toLocaleString("en")} photos.`);
    find("#grid-scroll").addEventListener("dblclick", () => this.enlarge());
    if (innerWidth < NARROW) this.grid.size = SMALL_TILE;
    find("#grid-size").value = this.grid.size;
    find("#grid-size").oninput = ({ target }) => {
      this.grid.size = Number(target.value);
    };
  }

  #fetch = async (offset, count, signal) => {
    if (this.#like === null) return get("grid", { ...apiQuery(this.filters.values), person: person(), offset, count }, { signal });
    const { tiles } = await get(`neighbors/${this.#like}`, { count: NUM_NEIGHBORS, person: person() }, { signal });
    return { total: tiles.length, model: this.list.model, tiles };
  };

  #describe(tile) {
    const predicted = classOf(tile.prediction)?.name;
    const chance = tile.confidence === null ? "" : percent(tile.confidence);
    const isOutlier = tile.outlier >= OUTLIER;
    const chip = tile.label ?? (tile.state === "waiting" ? "" : tile.state.replaceAll("_", " "));
    const name = [predicted ? `predicted ${predicted}, ${chance}` : "not predicted", isOutlier && "outlier", chip, tile.path];
    const isOneClass = this.#like === null && this.filters.values.class;
    return {
      chip,
      isOutlier,
      caption: [isOneClass ? chance : [predicted, chance].filter(Boolean).join(" "), isOutlier && "outlier"].filter(Boolean).join(" · "),
      name: name.filter(Boolean).join(", "),
    };
  }

  /** Shows the photos of an address. */
  async open(query) {
    const like = query.like === undefined ? null : Number(query.like);
    const isNew = this.filters.show(query) || like !== this.#like || !this.#isOpen;
    if (isNew) {
      this.#like = like;
      this.#isOpen = true;
      this.list.model = null;
      this.#names = [];
      await Promise.all([this.list.reload(), this.#showReference()]);
      this.#chooseNames();
      this.grid.reset();
    }
    this.#showState();
    this.grid.draw();
    this.grid.element.focus({ preventScroll: true });
  }

  /** Shows the photo whose neighbors the grid shows. */
  async #showReference() {
    if (this.#like === null) return;
    const { row, path } = await get(`image/${this.#like}`);
    find("#grid-like img").src = photo(row);
    find("#grid-like span").textContent = `Photos that look like ${path}, most similar first`;
  }

  /** Loads the tiles in view again, for example after an undo. */
  async reload() {
    if (!this.#isOpen) return;
    const [first, last] = this.grid.visible;
    const margin = 4 * this.grid.columns;
    await this.list.reload(this.#like === null ? first - margin : 0, last + margin);
    this.#showState();
    this.grid.draw();
  }

  /** Another model or another list of classes. */
  async restart() {
    this.filters.setOptions();
    this.#names = [];
    if (!this.#isOpen) return;
    await this.reload();
    this.#chooseNames();
  }

  /** The classes of the digit keys: the class of the filter, its cluster, and the most frequent predictions. */
  #chooseNames() {
    const { class: name, cluster } = this.filters.values;
    const first = this.#like === null ? name : "";
    const id = classNamed(first)?.id;
    const members = state.clusters.find((ids, number) => (first ? ids.includes(id) : this.#like === null && String(number) === cluster));
    const frequent = new Map();
    const [from] = this.grid.visible;
    for (let index = from; index < from + 200; index++) {
      const tile = this.list.at(index);
      const known = tile && (tile.label ?? classOf(tile.prediction)?.name);
      if (known) frequent.set(known, (frequent.get(known) ?? 0) + 1);
    }
    const byCount = [...frequent].sort((a, b) => b[1] - a[1]).map(([key]) => key);
    const mates = (members ?? []).map((member) => classOf(member)?.name);
    const others = first ? [] : [...state.classes].sort((a, b) => (b.predicted ?? 0) - (a.predicted ?? 0)).map((entry) => entry.name);
    this.#setNames([first, ...mates, ...byCount, ...this.#names, ...others]);
  }

  #setNames(names) {
    const valid = new Set(classNames());
    this.#names = [...new Set(names)].filter((name) => valid.has(name)).slice(0, MAX_NAMES);
    const button = (name, index) =>
      make("li", {}, make("button", { type: "button", "aria-keyshortcuts": index + 1, on: { click: () => this.choose(index) } },
        make("kbd", {}, String(index + 1)), make("span", { class: "name" }, name)));
    const list = find("#grid-names");
    keepFocus(list, () => list.replaceChildren(...this.#names.map(button)));
  }

  #showSelection() {
    const count = this.grid.selected.size;
    const rest = this.#rest();
    find("#grid-selected").textContent = count ? `${plural(count, "photo")} selected` : "Nothing selected";
    find("#grid [data-action=confirm] span").textContent = rest.length ? `Confirm the other ${rest.length}` : "Confirm the rest";
    find("#grid [data-action=confirm]").disabled = !rest.length;
    find("#grid [data-action=clear]").disabled = !count;
    find("#grid [data-action=like]").disabled = !this.grid.focusedTile;
  }

  #showState() {
    const { total } = this.list;
    const isLike = this.#like !== null;
    find("#grid-total").textContent = total ? plural(total, "photo") : "";
    find("#grid-filters").classList.toggle("like", isLike);
    find("#grid-like").hidden = !isLike;
    find("#grid-empty").hidden = total > 0;
    find("#grid-empty p").textContent = this.#emptyText();
    find("#grid-empty [data-action=all]").hidden = !this.filters.isFiltered;
    find("#grid-body").hidden = !total;
    this.#showSelection();
  }

  #emptyText() {
    if (this.#like !== null) return "There are no similar photos.";
    if (this.filters.isFiltered) return "No photo matches these filters.";
    return this.filters.values.state === "waiting" ? "All photos are labeled. Open Train to train with the labels." : "There are no such photos yet.";
  }

  /** Shows the labels that other people gave. */
  applyChanges(images) {
    if (!this.#isOpen) return;
    const changed = Object.entries(images).filter(([id, label]) => this.list.update(Number(id), { state: label.state, label: label.label, seen: label.seen }));
    if (changed.length) this.grid.schedule();
  }

  // Answers

  #selectedTiles() {
    const tiles = [...this.grid.selected].map((id) => this.list.get(id)).filter(Boolean);
    return tiles.length ? tiles : [this.grid.focusedTile].filter(Boolean);
  }

  /** The tiles in view that are not selected and still wait for a label. */
  #rest() {
    return this.grid.visibleTiles.filter((tile) => !this.grid.selected.has(tile.id) && tile.state === "waiting");
  }

  choose(index) {
    const name = this.#names[index];
    if (name) return this.#answer({ kind: "label", class: name }, this.#selectedTiles());
  }

  answer(kind) {
    return this.#answer({ kind, class: null }, this.#selectedTiles());
  }

  async search() {
    const tiles = this.#selectedTiles();
    const name = tiles.length && (await searchClass(classNames(), { creates: true }));
    if (!name) return;
    if (!classNamed(name) && !(await this.#run(() => createClass(name)))) return;
    await this.#answer({ kind: "label", class: name }, tiles);
  }

  /** Names all tiles in view that are not selected: each with the class that the model predicts. */
  async confirm() {
    const rest = this.#rest();
    if (!rest.length) return;
    const only = this.#like === null && this.filters.values.class;
    const names = new Map(); // from the class to its tiles
    for (const tile of rest) {
      const name = only || classOf(tile.prediction)?.name;
      if (name) names.set(name, [...(names.get(name) ?? []), tile]);
    }
    if (!names.size) {
      const name = await searchClass(classNames(), { creates: true });
      if (!name || (!classNamed(name) && !(await this.#run(() => createClass(name))))) return;
      names.set(name, rest);
    }
    const selected = new Set(this.grid.selected);
    for (const [name, tiles] of names) await this.#answer({ kind: "label", class: name }, tiles, selected);
  }

  async #answer(answer, tiles, keepSelected = new Set()) {
    if (!tiles.length || this.#isBusy) return;
    const choice = await askAboutLabeled(tiles, answer);
    const answered = choice === "others" ? tiles.filter(({ state: current }) => current === "waiting") : tiles;
    if (!choice || !answered.length) return;
    await this.#run(async () => {
      const images = answered.map(({ id, seen = 0 }) => ({ id, seen }));
      const labels = (await post("answer", { run: shownRun(), person: person(), images, keep_both: choice === "both", ...answer })).images;
      this.#afterAnswer(answered, labels, answer, keepSelected);
    });
  }

  #afterAnswer(tiles, labels, answer, keepSelected) {
    const ids = tiles.map(({ id }) => id);
    const conflicts = ids.filter((id) => labels[id]?.state === "conflict").length;
    toast(`${answerName(answer)}: ${plural(ids.length, "photo")}${conflicts ? `, ${conflicts} in conflict` : ""}`);
    for (const id of ids) {
      const label = labels[id];
      if (label) this.list.update(id, { state: label.state, label: label.label, seen: label.seen });
    }
    const leaves = this.#like === null && this.filters.values.state === "waiting" && answer.kind !== "skip";
    if (leaves) this.list.remove(ids.filter((id) => labels[id]?.state !== "waiting"));
    this.grid.selected = keepSelected;
    if (answer.class && !this.#names.includes(answer.class)) this.#setNames([...this.#names.slice(0, MAX_NAMES - 1), answer.class]);
    this.grid.changed();
    this.grid.draw();
    this.#showState();
    if (leaves) this.reload(); // the tiles that are new in view, sorted by the newest model
  }

  undo() {
    return this.#run(async () => {
      const { ids, classes } = await post("undo", { person: person() });
      if (!ids.length && classes === undefined) return toast("There is nothing to undo.");
      toast(ids.length > 1 ? `Undone for ${ids.length} photos` : "Undone");
      await this.reload();
    });
  }

  /** Runs one action at a time. Returns whether it succeeded. */
  async #run(action) {
    if (this.#isBusy) return false;
    this.#isBusy = true;
    try {
      await action();
      return true;
    } catch (error) {
      toast(`Not saved. ${error.message}`, true);
      return false;
    } finally {
      this.#isBusy = false;
    }
  }

  // Other actions

  clear() {
    this.grid.clear();
  }

  looksLike() {
    const tile = this.grid.focusedTile;
    if (tile) openAddress("grid", { like: tile.id });
  }

  outliers() {
    const order = this.filters.values.order === "outliers" ? "confidence" : "outliers";
    if (this.#like === null) this.filters.open({ ...this.filters.values, order });
  }

  enlarge() {
    const tile = this.grid.focusedTile;
    if (tile) this.zoom.open(tile.row);
  }
}

/** Asks what happens to photos that have another answer: "all", "both", "others", or "" to cancel. */
async function askAboutLabeled(tiles, answer) {
  const labeled = tiles.filter(({ state: current, label }) => current !== "waiting" && (label === null || label !== answer.class));
  if (!labeled.length || answer.kind === "skip") return "all";
  const dialog = find("#labeled-dialog");
  find("p", dialog).textContent = `${labeled.length} of ${plural(tiles.length, "photo")} ${labeled.length === 1 ? "has" : "have"} another answer.`;
  return openDialog(dialog);
}
