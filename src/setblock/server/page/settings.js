// The settings that the user chose, as a request's body. Shows only settings that have an effect on the served model.

import { at } from "./elements.js";

const TITLES = { exact: "Checked blocks", sbd: "Blocks", ntp: "Plain decoding" };
const NOTES = {
  exact: "Drafts several tokens and checks them: the text is plain decoding's.",
  sbd: "Fewer passes than exact. The text may differ from plain decoding's.",
  ntp: "Plain decoding: one token a pass.",
};
const UNTRAINED = "Copies drafts from the text and checks them: the text is plain decoding's. Method sbd needs a model that was trained for blocks.";

export const method = () => at("method").value;
export const key = () => at("key").value;
export const isHeld = () => at("schema").value.trim() !== "";
export const titleOf = (name) => `${TITLES[name]} (${name})`;

function fill(select, values) {
  select.replaceChildren(new Option("Default", ""), ...values.map((value) => new Option(value)));
}

export function show({ methods, method: usual, block_sizes: sizes, gammas }) {
  const isTrained = methods.includes("sbd");
  for (const option of at("method").options) {
    option.disabled = !methods.includes(option.value);
    option.textContent = option.disabled ? `${option.value} (not trained for blocks)` : option.value;
  }
  at("method").value = usual;
  fill(at("block"), sizes);
  fill(at("gamma"), gammas);
  const update = () => {
    at("of-blocks").hidden = !isTrained || method() === "ntp";
    at("method-note").textContent = isTrained || method() !== "exact" ? NOTES[method()] : UNTRAINED;
    at("chosen").textContent = `${method()}, temperature ${at("temperature").value || 0}`;
  };
  at("method").onchange = at("temperature").onchange = update;
  update();
}

export function body(name, seed) {
  const request = { method: name, temperature: Number(at("temperature").value), seed };
  if (at("most").value) request.max_tokens = Number(at("most").value);
  if (isHeld()) request.structured_outputs = { json: at("schema").value.trim() };
  if (name === "ntp" || at("of-blocks").hidden) return request;
  if (at("gamma").value) request.gamma = Number(at("gamma").value);
  if (at("block").value) request.block_size = Number(at("block").value);
  return request;
}
