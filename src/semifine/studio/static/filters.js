// The filters of a page. Their values stand in the address.

import { openAddress } from "./address.js";
import { make } from "./dom.js";
import { classNamed, clusterText, state } from "./state.js";

export const DEFAULTS = { state: "waiting", order: "", class: "", cluster: "", text: "", after: "", before: "" };

/** The query of a request for filters: the server knows classes by id. */
export function apiQuery(values) {
  const query = { ...values, class: values.class && (classNamed(values.class)?.id ?? "") };
  return Object.fromEntries(Object.entries(query).filter(([, value]) => value !== ""));
}

export class Filters {
  /**
   * @param form The form with one field per filter.
   * @param page The name of the page.
   * @param defaults The values that the address leaves out.
   */
  constructor(form, page, defaults) {
    this.form = form;
    this.page = page;
    this.defaults = { ...DEFAULTS, ...defaults };
    this.values = { ...this.defaults };
    form.onsubmit = (event) => event.preventDefault();
    form.onchange = (event) => this.#read(event);
    form.elements.text.addEventListener("search", (event) => this.#read(event)); // the clear button fires no other event
  }

  #read({ target }) {
    if (target.matches("[type=search], select")) target.blur(); // so that the keyboard shortcuts work again
    this.open({ ...this.values, ...Object.fromEntries(new FormData(this.form)) });
  }

  /** Opens the page with these values. Returns false if it is open already. */
  open(values) {
    return openAddress(this.page, this.#query(values));
  }

  /** The values as a query without defaults. */
  #query(values) {
    return Object.fromEntries(Object.entries(values).filter(([name, value]) => value !== this.defaults[name]));
  }

  get query() {
    return this.#query(this.values);
  }

  /** Shows the values of an address. Returns whether they differ from the ones before. */
  show(query) {
    const values = { ...this.defaults };
    for (const name of Object.keys(values)) if (name in query) values[name] = query[name];
    if (values.class && !classNamed(values.class)) values.class = ""; // a class of another model
    const isNew = Object.keys(values).some((name) => values[name] !== this.values[name]);
    this.values = values;
    for (const [name, value] of Object.entries(values)) if (this.form.elements[name]) this.form.elements[name].value = value;
    return isNew;
  }

  /** Fills the lists of classes and clusters. */
  setOptions() {
    const names = state.classes.filter(({ retired, labeled }) => !retired || labeled).map(({ name }) => [name, name]);
    setOptions(this.form.elements.class, names);
    const groups = (state.overview.groups ?? []).map(({ id, size }) => [id, `Group ${id + 1} (${size})`]);
    setOptions(this.form.elements.cluster, groups.length ? groups : state.clusters.map((members, id) => [id, clusterText(members)]));
    for (const name of ["class", "cluster"]) this.form.elements[name].value = this.values[name];
  }

  get isFiltered() {
    return ["class", "cluster", "text", "after", "before"].some((name) => this.values[name] !== this.defaults[name]);
  }
}

function setOptions(select, options) {
  const elements = options.map(([value, text]) => make("option", { value }, text.length > 60 ? text.slice(0, 58) + " …" : text));
  select.replaceChildren(make("option", { value: "" }, "all"), ...elements);
}
