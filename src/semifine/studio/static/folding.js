// Names as people type them: without accents, however the accents are written; as folding.py does it.

const WITHOUT_ACCENT = { ł: "l", ø: "o", đ: "d", ħ: "h", æ: "ae", œ: "oe", ß: "ss" };

export const plain = (text) =>
  text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase().replace(/[łøđħæœß]/g, (letter) => WITHOUT_ACCENT[letter]);
