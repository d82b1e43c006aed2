// Small helpers to build the page; text is always text, never markup.

const SVG = "http://www.w3.org/2000/svg";

export const find = (selector, root = document) => root.querySelector(selector);

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "vars") for (const [key, v] of Object.entries(value)) element.style.setProperty(`--${key}`, v);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const make = (tag, properties = {}, ...children) => fill(document.createElement(tag), properties, children);

export const draw = (tag, properties = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), properties, children);

export const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}\u00a0%`;

export const plural = (count, one, many = one + "s") => `${count} ${count === 1 ? one : many}`;

/** Lets a button say what is under way until it is done. */
export async function whileSaying(button, words, action) {
  const before = button.textContent;
  const set = (isBusy, text) => {
    button.ariaBusy = isBusy;
    button.disabled = isBusy;
    button.textContent = text;
  };
  set(true, words);
  try {
    await action();
  } catch (error) {
    toast(error.message, true);
  } finally {
    set(false, before);
  }
}

/** Renders anew, with the keyboard's focus on the button or link that takes the place of the focused one. */
export function keepingFocus(root, render) {
  const all = () => [...root.querySelectorAll("a, button")];
  const place = all().findIndex((element) => element.matches(":focus-visible"));
  render();
  if (place >= 0) all()[Math.min(place, all().length - 1)]?.focus({ preventScroll: true });
}

export function toast(text, isError = false) {
  const place = find("#toast");
  place.textContent = text;
  place.classList.toggle("error", isError);
  place.classList.add("shown");
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => place.classList.remove("shown"), isError ? 8000 : 2500);
}

/** What goes wrong again and again is told, but not in place of an error that is being read. */
export const grumble = (text) => find("#toast.error.shown") || toast(text, true);

/** Opens a dialog; the value of the button that closes it, "" for any other way out. */
export function ask(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => (dialog.onclose = () => resolve(dialog.returnValue)));
}

/** Lets a tap beside a dialog close it, as Esc does: a phone has no such key. */
export function leaveFromOutside(dialog) {
  dialog.onclick = ({ target, clientX: x, clientY: y }) => {
    const { left, right, top, bottom } = dialog.getBoundingClientRect();
    if (target === dialog && (x < left || x > right || y < top || y > bottom)) dialog.close();
  };
}
