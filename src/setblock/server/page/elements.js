// Find and make elements. All that a model or a user wrote is set as text, never as markup.

export const at = (id) => document.getElementById(id);

export function element(tag, className = "", text = undefined) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : word.endsWith("s") ? "es" : "s"}`;
