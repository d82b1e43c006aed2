// Helpers that build and update the page. Text is never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

export const find = (selector, root = document) => root.querySelector(selector);

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "vars") for (const [key, v] of Object.entries(value)) element.style.setProperty(`--${key}`, v);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An HTML element. */
export const make = (tag, properties = {}, ...children) => fill(document.createElement(tag), properties, children);

/** An SVG element. */
export const draw = (tag, properties = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), properties, children);

export const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)}\u00a0%`;

export const plural = (count, one, many = one + "s") => `${count} ${count === 1 ? one : many}`;

/** Disables a button and changes its text until an action is done. */
export async function whileBusy(button, busyText, action) {
  const idleText = button.textContent;
  const set = (isBusy, text) => {
    button.ariaBusy = isBusy;
    button.disabled = isBusy;
    button.textContent = text;
  };
  set(true, busyText);
  try {
    await action();
  } catch (error) {
    toast(error.message, true);
  } finally {
    set(false, idleText);
  }
}

/** Renders, and keeps the keyboard focus on the button or link at the same position. */
export function keepFocus(root, render) {
  const all = () => [...root.querySelectorAll("a, button")];
  const index = all().findIndex((element) => element.matches(":focus-visible"));
  render();
  if (index >= 0) all()[Math.min(index, all().length - 1)]?.focus({ preventScroll: true });
}

export function toast(text, isError = false) {
  const element = find("#toast");
  element.textContent = text;
  element.classList.toggle("error", isError);
  element.classList.add("shown");
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => element.classList.remove("shown"), isError ? 8000 : 2500);
}

/** Shows a repeated error unless another error is visible. */
export const repeatedError = (text) => find("#toast.error.shown") || toast(text, true);

/** Opens a dialog. Returns the value of the button that closes it, or "" if it is canceled. */
export function openDialog(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => (dialog.onclose = () => resolve(dialog.returnValue)));
}

/** Lets a tap outside of a dialog close it, because phones have no Esc key. */
export function closeOnOutsideClick(dialog) {
  dialog.onclick = ({ target, clientX: x, clientY: y }) => {
    const { left, right, top, bottom } = dialog.getBoundingClientRect();
    if (target === dialog && (x < left || x > right || y < top || y > bottom)) dialog.close();
  };
}
