// Talks to the server. Addresses are relative: the page's own address holds the token.

async function answer(response) {
  const text = await response.text();
  let body = null;
  try {
    body = JSON.parse(text);
  } catch {
    throw new Error(text || `The studio answered with ${response.status}.`);
  }
  if (!response.ok) throw new Error(body.error || `The studio answered with ${response.status}.`);
  return body;
}

async function ask(address, options) {
  let response;
  try {
    response = await fetch(address, options);
  } catch {
    throw new Error("The studio does not answer. Is it still running?");
  }
  return answer(response);
}

export const get = (name, query = {}) => ask(`api/${name}?${new URLSearchParams(query)}`);

export const post = (name, body = {}) =>
  ask(`api/${name}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });

// The run is part of the address, because another model may number the photos in another way.
let run = "";
export const setRun = (name) => (run = name);
export const shownRun = () => run;
export const photo = (row, size = "small") => `photo/${row}/${size}?${new URLSearchParams({ run })}`;
