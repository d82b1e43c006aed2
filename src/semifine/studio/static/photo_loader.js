// Loads photos of tiles: a few at a time, the newest requests first, none for tiles that have scrolled out.

const AT_ONCE = 6; // browsers open six connections to a server

const waiting = []; // elements with the address to load
const loading = new Set();

/** Loads a photo into an <img> when there is a free slot. */
export function loadPhoto(image, address) {
  if (image.dataset.photo === address) return;
  cancelPhoto(image);
  image.dataset.photo = address;
  waiting.push(image);
  fill();
}

/** Stops loading a photo, and empties the <img>. */
export function cancelPhoto(image) {
  const index = waiting.indexOf(image);
  if (index >= 0) waiting.splice(index, 1);
  loading.delete(image);
  delete image.dataset.photo;
  image.removeAttribute("src"); // the browser cancels the request
  image.classList.remove("loaded");
  fill();
}

let heldUntil = 0;
let timer = null;

/** Starts no photo for some milliseconds: while the page scrolls fast, photos would only pass by and slow it down. */
export function holdPhotos(milliseconds) {
  heldUntil = performance.now() + milliseconds;
  timer ??= setTimeout(release, milliseconds);
}

function release() {
  const left = heldUntil - performance.now();
  timer = left > 0 ? setTimeout(release, left) : null;
  if (!timer) fill();
}

/** Photos that are loading or wait for a slot. */
export const pendingPhotos = () => waiting.length + loading.size;

function fill() {
  while (!timer && loading.size < AT_ONCE && waiting.length) {
    const image = waiting.pop();
    loading.add(image);
    const address = image.dataset.photo;
    const done = (isLoaded) => {
      if (image.dataset.photo !== address) return; // canceled, and perhaps used for another photo
      loading.delete(image);
      image.classList.toggle("loaded", isLoaded);
      fill();
    };
    image.onload = () => done(true);
    image.onerror = () => done(false);
    image.src = address;
  }
}
