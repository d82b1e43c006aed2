// Who is labelling: asked once in each window, so that two people can share a browser.

import { find } from "./dom.js";

const KEY = "semifine-studio-person";

export const person = () => sessionStorage.getItem(KEY) || "";

export function askName() {
  const dialog = find("#name-dialog");
  const input = find("input", dialog);
  input.value = person();
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.onclose = () => {
      const name = input.value.trim().replace(/\s+/g, " ");
      if (name) sessionStorage.setItem(KEY, name);
      if (!person()) dialog.showModal();
      else resolve(show());
    };
  });
}

export function show() {
  find("#person").textContent = person();
  return person();
}
