// The form that adds labels from a file.

import { post } from "./api.js";
import { find, make, plural, whileBusy } from "./dom.js";
import { person } from "./people.js";

const MAX_LISTED = 20;

/** @param onImport Is called after labels were added. */
export function setUpImport(onImport) {
  const form = find("#import-form");
  form.onsubmit = (event) => {
    event.preventDefault();
    whileBusy(find("button", form), "Adding …", async () => {
      const content = await form.elements.file.files[0].text();
      const result = await post("import", { person: person(), format: form.elements.format.value, content });
      showOutcome(result);
      form.reset();
      await onImport();
    });
  };
}

function showOutcome({ labels, known = 0, skipped, num_skipped: numSkipped = skipped.length }) {
  const parts = [`Added ${plural(labels, "label")}`, known && `${known} were known`, numSkipped && `${numSkipped} skipped`];
  find("#import-outcome").replaceChildren(
    `${parts.filter(Boolean).join(", ")}. Undo takes all of them back.`,
    ...(skipped.length
      ? [make("details", {}, make("summary", {}, "Skipped lines"), make("ul", {}, skipped.slice(0, MAX_LISTED).map(({ path, reason }) => make("li", {}, `${path}: ${reason}`))))]
      : []));
}
