// Requests to the server. URLs are relative, because the page's own URL contains the token.

async function parse(response) {
  const text = await response.text();
  const failure = `The studio responded with status ${response.status}.`;
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    throw new Error(text || failure);
  }
  if (!response.ok) throw new Error(body.error || failure);
  return body;
}

async function request(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The studio does not respond. Is it still running?");
  }
  return parse(response);
}

export const get = (name, query = {}, options = {}) => request(`api/${name}?${new URLSearchParams(query)}`, options);

export const post = (name, body = {}) =>
  request(`api/${name}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });

// The run is part of photo URLs, because another model may number the photos differently.
let run = "";
export const setRun = (name) => (run = name);
export const shownRun = () => run;
export const photo = (row, size = "small") => `photo/${row}/${size}?${new URLSearchParams({ run })}`;
