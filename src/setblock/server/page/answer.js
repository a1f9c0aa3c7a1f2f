// One answer on the page: its tokens as any pass left them, its passes as a table, its counts.
// All that a model wrote is set as text, never as markup.

const HUES = 8;

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

export class Answer {
  constructor(title, isHeld = false) {
    this.title = title;
    this.isHeld = isHeld; // to a form, which forces the tokens without entropy
    this.events = [];
    this.final = null; // the tokens of the finished answer
    this.usage = null;
    this.text = "";
    this.root = element("article", "answer");
    this.heading = element("h2", "", title);
    this.count = element("p", "count");
    this.passCount = element("b", "", "0");
    this.countText = element("span");
    this.count.append(this.passCount, this.countText);
    this.bar = element("progress");
    this.bar.max = 1;
    this.bar.value = 0;
    this.bar.setAttribute("aria-label", `${title}: passes`);
    this.tokens = element("div", "tokens");
    this.tokens.setAttribute("aria-live", "polite");
    this.tokens.setAttribute("aria-busy", "true");
    const passes = element("details", "passes");
    passes.append(element("summary", "", "All passes"));
    this.table = element("tbody");
    const table = element("table");
    const head = element("tr");
    for (const name of ["pass", "kind", "revealed"]) {
      const cell = element("th", "", name);
      cell.scope = "col";
      head.append(cell);
    }
    const scroll = element("div", "scroll");
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", `${title}: all passes`);
    table.append(element("thead"), this.table);
    table.tHead.append(head);
    scroll.append(table);
    passes.append(scroll);
    this.root.append(this.heading, this.count, this.bar, this.tokens, passes);
    this.draw(0);
  }

  get passes() { return this.events.length; }

  add(event) {
    this.events.push(event);
    const row = element("tr");
    const number = element("th", "", String(event.number));
    number.scope = "row";
    const told = event.revealed.map((each) => each.text).join("·");
    const corrected = event.corrected ? `draft wrong, now ${event.corrected.text} ` : "";
    row.append(number, element("td", "", event.kind), element("td", "", corrected + told));
    this.table.append(row);
    this.draw(this.passes);
  }

  finish(tokens, reason) {
    this.final = tokens;
    this.reason = reason;
    this.tokens.setAttribute("aria-busy", "false");
    this.draw(this.passes);
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
    const shown = Math.min(n, this.passes);
    const standing = this.after(shown);
    const length = standing.size ? Math.max(...standing.keys()) + 1 : 0;
    const nodes = [];
    for (let index = 0; index < length; index += 1) {
      const token = standing.get(index);
      if (!token) {
        const mask = element("span", "mask", "▢");
        mask.setAttribute("aria-hidden", "true");
        nodes.push(mask);
        continue;
      }
      const isEnd = /^<\|.*\|>$/.test(token.text);
      const node = element("span", `token hue-${token.pass % HUES}`, isEnd ? "end" : index ? token.text : token.text.trimStart());
      node.dataset.pass = token.pass;
      const nats = token.entropy === null ? "" : `, entropy ${token.entropy.toPrecision(2)} nats`;
      const isForced = this.isHeld && token.entropy === 0;
      node.title = `pass ${token.pass}${isForced ? ", forced" : nats}`;
      if (isForced) node.classList.add("forced");
      if (isEnd) node.classList.add("end");
      if (token.pass === shown - 1 && shown < this.passes) node.classList.add("fresh");
      nodes.push(node);
    }
    this.tokens.replaceChildren(...nodes);
    this.passCount.textContent = String(shown);
    const size = standing.size;
    const each = shown ? (size / shown).toFixed(1) : "0";
    this.countText.textContent = `${shown === 1 ? "pass" : "passes"} · ${size} tokens · ${each} a pass`;
    this.bar.value = shown;
  }
}
