// The classes page: create, rename, merge, retire and restore classes. The list follows the taxonomy if there is one.

import { addressOf } from "./address.js";
import { post } from "./api.js";
import { casefold, searchClass } from "./class_search.js";
import { find, keepFocus, make, openDialog, plural, toast } from "./dom.js";
import { person } from "./people.js";
import { classNames, classOf, setClasses, state } from "./state.js";

const MAX_ROWS = 300;

export class ClassesView {
  #search = find("#classes-search");
  #list = find("#classes-list");

  /** @param onChange Is called after the list of classes has changed. */
  constructor(onChange) {
    this.onChange = onChange;
    this.#search.oninput = () => this.show();
    const form = find("#classes-form");
    form.onsubmit = async (event) => {
      event.preventDefault();
      const name = form.elements.name.value.trim();
      if (name && (await this.#change("create", name))) form.reset();
    };
    find("#classes-undo").onclick = () => this.undo();
  }

  show() {
    const text = casefold(this.#search.value.trim());
    const matching = state.classes.filter(({ name }) => casefold(name).includes(text));
    const active = matching.filter(({ retired }) => !retired);
    const retired = matching.filter((entry) => entry.retired);
    const isTree = state.overview?.taxonomy && !text;
    keepFocus(this.#list, () =>
      this.#list.replaceChildren(
        ...(isTree ? [this.#tree(state.overview.taxonomy, true)] : this.#rows(active)),
        ...(retired.length ? [make("h2", {}, "Retired classes"), ...this.#rows(retired)] : []),
      ));
    find("#classes-count").textContent = plural(active.length, "class", "classes");
    const empty = find("#classes-empty");
    empty.hidden = matching.length > 0;
    empty.textContent = state.classes.length ? "No class matches." : "There are no classes yet. Create the first one above, or name photos in the grid.";
  }

  #rows(classes) {
    const rest = classes.length - MAX_ROWS;
    return [
      make("ul", { class: "rows" }, classes.slice(0, MAX_ROWS).map((entry) => this.#row(entry))),
      rest > 0 && make("p", { class: "quiet" }, `${plural(rest, "more class", "more classes")}. Type to narrow the list.`),
    ].filter(Boolean);
  }

  #tree({ name, children = [], class: id }, isRoot = false) {
    const entry = classOf(id);
    if (entry && !children.length) return make("ul", { class: "rows" }, this.#row(entry));
    const inside = make("div", { class: "branch" }, children.map((child) => this.#tree(child)));
    return isRoot ? inside : make("details", { open: true }, make("summary", {}, name), entry && this.#row(entry), inside);
  }

  #row({ id, name, retired, labeled = 0, new_labels: added = 0, predicted = 0, merged_into: target = null }) {
    const button = (text, action) => make("button", { type: "button", "aria-label": `${text} ${name}`, on: { click: action } }, text);
    const labels = labeled + added;
    return make("li", { "data-class": id },
      make("a", { class: "name", href: addressOf("grid", { class: name }) }, name),
      make("span", { class: "quiet" }, target === null ? `${labels} labeled, ${predicted} predicted` : `merged into ${classOf(target)?.name}`),
      make("span", { class: "buttons" },
        retired
          ? button("Restore", () => this.#change("restore", name))
          : [
              button("Rename", () => this.#rename(name)),
              button("Merge", () => this.#merge(name)),
              button("Retire", () => this.#change("retire", name)),
            ]));
  }

  async #rename(name) {
    const dialog = find("#rename-dialog");
    const input = find("input", dialog);
    find("h2", dialog).textContent = `Rename ${name}`;
    input.value = name;
    const to = (await openDialog(dialog)) === "ok" && input.value.trim();
    if (to && to !== name) await this.#change("rename", name, to);
  }

  async #merge(name) {
    const to = await searchClass(classNames().filter((other) => other !== name), { title: `Merge ${name} into` });
    if (to) await this.#change("merge", name, to);
  }

  /** Sends a change. Returns whether the server accepted it. */
  async #change(action, name, to = undefined) {
    try {
      const { classes } = await post("classes", { person: person(), action, name, ...(to && { to }) });
      setClasses(classes);
      toast(changeText(action, name, to));
      await this.onChange();
      return true;
    } catch (error) {
      toast(error.message, true);
      return false;
    }
  }

  async undo() {
    try {
      const { ids, classes } = await post("undo", { person: person() });
      if (!ids.length && !classes) return toast("There is nothing to undo.");
      toast(ids.length ? `Undone for ${plural(ids.length, "photo")}` : "Undone");
      await this.onChange();
    } catch (error) {
      toast(error.message, true);
    }
  }
}

const changeText = (action, name, to) =>
  ({ create: `Created ${name}`, rename: `Renamed ${name} to ${to}`, merge: `Merged ${name} into ${to}`, retire: `Retired ${name}`, restore: `Restored ${name}` })[action];
