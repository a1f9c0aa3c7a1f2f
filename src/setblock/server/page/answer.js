// One answer: its tokens as any pass left them, its passes as a table, its counts.

import { element, plural } from "./elements.js";

const HUES = 8;

// The part of a finished answer's text that each token stands for. A token alone may be half a character, or lack its space.
export function partsOf(tokens, text) {
  const parts = [];
  let from = 0;
  let waiting = 0; // tokens that are no whole characters
  for (const token of tokens) {
    const core = token.text.trim();
    if (core.includes("\ufffd")) {
      waiting += 1;
      continue;
    }
    const at = core ? text.indexOf(core, from) : from;
    if (at < 0 || (!waiting && text.slice(from, at).trim())) return tokens.map((each) => each.text);
    const to = core ? at + core.length : Math.min(text.length, from + token.text.length);
    if (waiting) {
      const space = text.slice(from, at).match(/\s*$/)[0].length;
      parts.push(text.slice(from, at - space), ...Array(waiting - 1).fill(""));
      from = at - space;
      waiting = 0;
    }
    parts.push(text.slice(from, to));
    from = to;
  }
  if (waiting) parts.push(text.slice(from), ...Array(waiting - 1).fill(""));
  return parts;
}

export class Answer {
  // `isPlain`: every pass reveals one token, so colours would say nothing. `isHeld`: to a form, which forces tokens.
  constructor(title, { isPlain = false, isHeld = false } = {}) {
    this.isPlain = isPlain;
    this.isHeld = isHeld;
    this.events = [];
    this.text = "";
    this.usage = null;
    this.final = null; // the tokens of the finished answer
    this.drawing = 0;
    this.latest = new Map(); // index -> the token that stands there, and its node in the table
    this.root = document.getElementById("answer").content.firstElementChild.cloneNode(true);
    const parts = ["h3 span", "progress", ".tokens", "tbody"].map((each) => this.root.querySelector(each));
    [this.count, this.bar, this.tokens, this.rows] = parts;
    this.count.before(`${title} `);
    this.bar.setAttribute("aria-label", `${title}: passes`);
    this.root.querySelector("table").setAttribute("aria-label", `${title}: all passes`);
    this.draw(0);
  }

  get passes() { return this.events.length; }

  add(event) {
    this.events.push(event);
    const row = element("tr");
    const number = element("th", "", String(event.number));
    number.scope = "row";
    const cell = element("td");
    if (event.corrected) {
      this.reject(event.corrected.index, event.number);
      cell.append("draft wrong, now ", this.placed(event.corrected), event.revealed.length ? " " : "");
    }
    event.revealed.forEach((each, place) => {
      this.reject(each.index, event.number, each.index);
      cell.append(place ? "·" : "", this.placed(each));
    });
    row.append(number, element("td", "", event.kind), cell);
    this.rows.append(row);
    this.drawSoon();
  }

  placed(token) {
    const node = element("span", "", token.text);
    this.latest.set(token.index, { token, node });
    return node;
  }

  // Cross out what stands from an index on: drafts, which a pass has found wrong, or which lie behind the answer's end.
  reject(first, pass, last = Infinity) {
    for (const [index, { token, node }] of this.latest) {
      if (index < first || index > last) continue;
      token.rejected = pass === null ? "behind the end of the answer" : `a draft, discarded in pass ${pass}`;
      node.className = "rejected";
      node.title = token.rejected;
      this.latest.delete(index);
    }
  }

  finish(tokens, reason) {
    const hasEnd = reason === "stop"; // the last token is no text
    const parts = partsOf(hasEnd ? tokens.slice(0, -1) : tokens, this.text);
    this.final = { length: tokens.length, parts, end: hasEnd ? tokens.length - 1 : -1, isCut: reason === "length" };
    this.reject(tokens.length, null);
    this.close();
  }

  close() {
    this.tokens.setAttribute("aria-busy", "false");
    this.drawSoon();
  }

  // Passes may come faster than the screen shows them.
  drawSoon() {
    this.drawing ||= requestAnimationFrame(() => this.draw(this.passes));
  }

  // Which tokens stand where after the first `n` passes: index -> token with its pass.
  after(n) {
    const standing = new Map();
    for (const event of this.events.slice(0, n)) {
      if (event.corrected) {
        for (const index of [...standing.keys()]) if (index > event.corrected.index) standing.delete(index);
        standing.set(event.corrected.index, { ...event.corrected, pass: event.number });
      }
      for (const each of event.revealed) standing.set(each.index, { ...each, pass: event.number });
    }
    if (this.final) for (const index of [...standing.keys()]) if (index >= this.final.length) standing.delete(index);
    return standing;
  }

  draw(n) {
    cancelAnimationFrame(this.drawing);
    this.drawing = 0;
    const shown = Math.min(n, this.passes);
    const standing = this.after(shown);
    const length = Math.max(-1, ...standing.keys()) + 1;
    const nodes = Array.from({ length }, (_, index) => this.node(standing.get(index), index, shown));
    this.tokens.replaceChildren(...nodes);
    const each = shown && !this.isPlain ? `, ${(standing.size / shown).toFixed(1)} a pass` : "";
    const whole = this.final && shown === this.passes;
    const drafted = whole ? this.usage?.num_drafted_tokens : 0;
    const kept = drafted ? ` · ${this.usage.num_accepted_tokens} of ${plural(drafted, "drafted token")} kept` : "";
    const cut = whole && this.final.isCut ? " · cut at the limit" : "";
    this.count.textContent = `${plural(shown, "pass")} · ${plural(standing.size, "token")}${each}${kept}${cut}`;
    this.bar.value = shown;
  }

  node(token, index, shown) {
    if (!token) {
      const mask = element("span", "mask", "▢");
      mask.setAttribute("aria-hidden", "true");
      return mask;
    }
    if (this.final?.end === index) return element("span", "end", "end");
    const text = this.final?.parts[index] ?? (index ? token.text : token.text.trimStart());
    if (this.isPlain) return document.createTextNode(index ? text : text.trimStart());
    const node = element("span", `token hue-${token.pass % HUES}`, index ? text : text.trimStart());
    node.dataset.pass = token.pass;
    const isForced = this.isHeld && token.entropy === 0;
    const nats = token.entropy === null ? "" : `, entropy ${token.entropy.toPrecision(2)} nats`;
    node.title = `pass ${token.pass}${isForced ? ", forced" : nats}${token.rejected ? `: ${token.rejected}` : ""}`;
    node.classList.toggle("rejected", Boolean(token.rejected));
    node.classList.toggle("forced", isForced);
    node.classList.toggle("fresh", token.pass === shown - 1 && shown < this.passes);
    return node;
  }
}
