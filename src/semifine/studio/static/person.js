// Who is labeling: asked once in each window, so that two people can share a browser.

import { post } from "./api.js";
import { ask, find } from "./dom.js";

const KEY = "semifine-studio-person";

export const person = () => sessionStorage.getItem(KEY) || "";

export async function askName() {
  const dialog = find("#name-dialog");
  const input = find("input", dialog);
  input.value = person();
  let complaint = "";
  do {
    find(".failed", dialog).textContent = complaint;
    complaint = (await ask(dialog)) === "ok" ? await take(input.value) : "";
  } while (complaint || !person());
  show();
}

/** Keeps a name that the studio can write down; else what is wrong with it. */
async function take(name) {
  try {
    const checked = await post("person", { person: name });
    sessionStorage.setItem(KEY, checked.person);
    return "";
  } catch (error) {
    return error.message;
  }
}

export function show() {
  find("#person").textContent = person();
}
