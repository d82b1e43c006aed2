// Who is labelling: asked once, kept in the browser.

import { find } from "./dom.js";

const KEY = "semifine-studio-person";

export const person = () => localStorage.getItem(KEY) || "";

export function askName() {
  const dialog = find("#name-dialog");
  const input = find("input", dialog);
  input.value = person();
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.onclose = () => {
      const name = input.value.trim().replace(/\s+/g, " ");
      if (name) localStorage.setItem(KEY, name);
      if (!person()) dialog.showModal();
      else resolve(show());
    };
  });
}

export function show() {
  find("#person").textContent = person();
  return person();
}
