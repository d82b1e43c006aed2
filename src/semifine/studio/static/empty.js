// What the desk says where it has no image to show.

import { find } from "./dom.js";

export function showEmpty(queue) {
  find("#empty p").textContent = wordsFor(queue);
  find("#empty [data-action=all]").hidden = !queue.isNarrowed;
}

function wordsFor(queue) {
  if (queue.hasBegun) return queue.isForWaiting ? "Nothing is waiting here any more. Well done." : "That was the last one.";
  if (queue.isNarrowed) return `No ${queue.isForWaiting ? "waiting" : "such"} image fits these filters.`;
  return queue.isForWaiting ? "Nothing is waiting. Well done." : "There are no such images.";
}
