// The answers other than a class. To add a verdict, add an entry here and its kind to data/label_log.py.

export const ANSWERS = [
  { kind: "none_of_these", name: "none of these", button: "None of these", keys: ["0", "n"], isVerdict: true, isState: true, help: "none of the candidates" },
  { kind: "unsure", name: "unsure", button: "Unsure", keys: ["u"], isState: true, help: "I cannot tell" },
  { kind: "skip", name: "skip", button: "Skip", keys: ["s"], help: "skip: the image comes back at the end" },
];

const NAMES = Object.fromEntries(ANSWERS.map(({ kind, name }) => [kind, name]));

/** Verdicts decide what an image shows, so they can be in conflict. */
export const isVerdict = (kind) => kind === "label" || ANSWERS.some((answer) => answer.kind === kind && answer.isVerdict);

/** The class of a label, or the name of another answer. */
export const answerName = ({ kind, class: className }) => className ?? NAMES[kind];
