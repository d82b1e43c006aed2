// What all pages know: the classes, the clusters, the live model and the role of the person.

import { get, setRun } from "./api.js";

/** The last overview of the server, and what the pages derive from it. */
export const state = {
  overview: null,
  classes: [], // in the order of the server
  clusters: [],
  live: null,
  role: "train",
};

let byId = new Map();
let byName = new Map();

/** Loads the overview. */
export async function loadState() {
  const overview = await get("overview");
  setRun(overview.run);
  setClasses(overview.classes);
  Object.assign(state, {
    overview,
    clusters: overview.clusters ?? [],
    live: overview.live ?? null,
    role: overview.role ?? "train",
  });
  return overview;
}

export function setClasses(classes) {
  state.classes = classes.map((entry, index) => ({ id: index, ...entry }));
  byId = new Map(state.classes.map((entry) => [entry.id, entry]));
  byName = new Map(state.classes.map((entry) => [entry.name, entry]));
}

/** The class with an id, or undefined. */
export const classOf = (id) => byId.get(id);

/** The class with a name, or undefined. */
export const classNamed = (name) => byName.get(name);

/** Names of the classes that an answer may have. */
export const classNames = () => state.classes.filter(({ retired }) => !retired).map(({ name }) => name);

/** The classes of a cluster, as text. */
export const clusterText = (members) => members.map((id) => classOf(id)?.name).filter(Boolean).join(", ");
