// A turn: the prompt, the answers side by side, their comparison, and a replay pass by pass.

import { element, plural } from "./elements.js";

const PASSES_A_SECOND = 8;

export class Turn {
  constructor(prompt, answers) {
    this.answers = answers;
    this.root = element("article", "turn");
    this.lanes = element("div", "lanes");
    this.lanes.append(...answers.map((answer) => answer.root));
    if (answers.length === 1) answers[0].bar.hidden = true; // there is nothing to compare it with
    this.verdict = element("p", "verdict");
    this.verdict.setAttribute("role", "status");
    this.verdict.hidden = true;
    this.root.append(element("p", "said", prompt), this.lanes, this.verdict);
  }

  get passes() { return Math.max(0, ...this.answers.map((answer) => answer.passes)); }

  // All bars have one scale.
  scale() {
    for (const answer of this.answers) answer.bar.max = Math.max(1, this.passes);
  }

  say(...parts) {
    this.verdict.replaceChildren(...parts);
    this.verdict.hidden = false;
  }

  finish() {
    if (this.answers.length === 1) return;
    const [mine, plain] = this.answers;
    const [few, many] = [mine.usage.num_forwards, plain.usage.num_forwards];
    const times = element("b", "", few <= many ? `${(many / few).toFixed(1)} times fewer` : `${(few / many).toFixed(1)} times more`);
    const text = mine.text === plain.text ? "the same text" : "another text";
    this.say(`${plural(few, "pass")} instead of ${many}: `, times, `, and ${text}.`);
  }

  fail(problem) {
    if (!this.passes) this.lanes.hidden = true;
    const alert = element("p", "problem", problem);
    alert.setAttribute("role", "alert");
    this.root.append(alert);
  }

  // No replay for tokens that came one by one.
  addReplay() {
    const most = this.passes;
    if (most < 2 || this.answers.every((answer) => answer.isPlain)) return;
    const button = element("button", "", "Play");
    button.type = "button";
    const slider = element("input");
    Object.assign(slider, { type: "range", min: 0, max: most, step: 1 });
    slider.setAttribute("aria-label", "Pass");
    const number = element("output");
    const show = (pass) => {
      slider.value = pass;
      number.textContent = `pass ${pass} of ${most}`;
      slider.setAttribute("aria-valuetext", number.textContent);
      for (const answer of this.answers) answer.draw(pass);
    };
    let playing = null;
    const pause = () => {
      clearInterval(playing);
      playing = null;
      button.textContent = "Play";
    };
    button.addEventListener("click", () => {
      if (playing) { pause(); return; }
      if (Number(slider.value) >= most) show(0);
      button.textContent = "Pause";
      playing = setInterval(() => {
        show(Number(slider.value) + 1);
        if (Number(slider.value) >= most) pause();
      }, 1000 / PASSES_A_SECOND);
    });
    slider.addEventListener("input", () => { pause(); show(Number(slider.value)); });
    const replay = element("div", "replay");
    replay.setAttribute("role", "group");
    replay.setAttribute("aria-label", "Replay, pass by pass");
    replay.append(button, slider, number);
    this.root.append(replay);
    show(most);
  }
}
