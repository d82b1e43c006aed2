// The address of a page: "#grid?class=Robin&state=waiting". It survives a reload and the back button.

/** The page and the query of the current address. */
export function readAddress(hash = location.hash) {
  const [page, query = ""] = hash.slice(1).split(/\?(.*)/s);
  return { page, query: Object.fromEntries(new URLSearchParams(query)) };
}

/** The address of a page. Empty values are left out. */
export function addressOf(page, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return `#${page}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

/** Opens a page as a new entry of the browser's history. Returns false if it is open already. */
export function openAddress(page, query = {}) {
  const address = addressOf(page, query);
  if (address === (location.hash || "#label")) return false;
  location.hash = address;
  return true;
}
