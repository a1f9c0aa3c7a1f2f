// The page: what was asked for, the answers side by side or as a chat, and their replay.

import { Answer } from "./answer.js";
import { watchFigures } from "./figures.js";
import { chat, model, Problem } from "./stream.js";

const GAMMAS = [0, 0.002, 0.005, 0.01, 0.03, 0.1, 0.35, 1, 3, "inf"];
const USUAL_GAMMA = { exact: 1, sbd: 0.03 };
const PASSES_A_SECOND = 8;
const at = (id) => document.getElementById(id);
const state = { served: null, blocks: [16], answers: [], messages: [], running: null, playing: null };

// Settings

function slider(id, labels) {
  const input = at(id);
  const show = () => {
    const label = labels(Number(input.value));
    at(`${id}-value`).textContent = label;
    input.setAttribute("aria-valuetext", label);
  };
  input.addEventListener("input", show);
  show();
}

const shownGamma = (value) => (value === "inf" ? "∞" : String(value));
const isHeld = () => at("schema").value.trim() !== "";
const isRace = () => document.querySelector("[name=mode]:checked").value === "race";

function settings(method) {
  const body = { model: state.served.id, method, temperature: Number(at("temperature").value), seed: 0 };
  body.max_tokens = Number(at("most").value);
  const schema = at("schema").value.trim();
  if (schema) body.structured_outputs = { json: schema };
  if (method === "ntp") return body;
  const gamma = GAMMAS[at("gamma").value];
  return { ...body, gamma, block_size: state.blocks[at("block").value] };
}

function titleOf(method) {
  if (method === "ntp") return "One token a pass";
  const block = `blocks of ${state.blocks[at("block").value]}`;
  return `${method === "exact" ? "Checked " : "Set "}${block}, γ ${shownGamma(GAMMAS[at("gamma").value])}`;
}

async function connect() {
  try {
    state.served = await model(at("key").value);
  } catch (problem) {
    tell(problem);
    return false;
  }
  const { methods, block_sizes: sizes } = state.served.setblock;
  state.blocks = sizes.length ? sizes : [16];
  at("model").textContent = state.served.id;
  at("block").max = state.blocks.length - 1;
  at("block").value = Math.max(0, state.blocks.findLastIndex((size) => size <= 16));
  at("block").dispatchEvent(new Event("input"));
  for (const option of at("method").options) option.disabled = !methods.includes(option.value);
  if (!methods.includes(at("method").value)) at("method").value = methods[0];
  return true;
}

// Answers

function tell(problem) {
  const isKey = problem instanceof Problem && problem.status === 401;
  at("problem").textContent = problem.message;
  at("problem").hidden = false;
  if (isKey) {
    at("key-box").open = true;
    at("key").focus();
  }
}

async function decode(answer, body, signal) {
  for await (const chunk of chat(body, at("key").value, signal)) {
    if (chunk.usage) answer.usage = chunk.usage;
    for (const choice of chunk.choices) {
      answer.text += choice.delta.content ?? "";
      if (choice.pass_event) answer.add(choice.pass_event);
      if (choice.tokens) answer.finish(choice.tokens, choice.finish_reason);
    }
    scale();
  }
}

function scale() {
  const most = Math.max(1, ...state.answers.map((answer) => answer.passes));
  for (const answer of state.answers) answer.bar.max = most;
}

function verdict(mine, plain) {
  const fewer = (plain.usage.num_forwards - 1) / Math.max(1, mine.usage.num_forwards - 1);
  const same = mine.text === plain.text ? "the same text" : "another text";
  const passes = `${mine.usage.num_forwards} passes against ${plain.usage.num_forwards}`;
  return `${passes}, ${fewer.toFixed(1)} times fewer without the prefills, and ${same}.`;
}

async function race(prompt, signal) {
  const method = at("method").value;
  state.answers = [method, "ntp"].map((each) => new Answer(titleOf(each), isHeld()));
  at("lanes").replaceChildren(...state.answers.map((answer) => answer.root));
  at("lanes").scrollIntoView({ block: "nearest" });
  const messages = [{ role: "user", content: prompt }];
  const bodies = [settings(method), settings("ntp")].map((body) => ({ ...body, messages }));
  await Promise.all(state.answers.map((answer, lane) => decode(answer, bodies[lane], signal)));
  at("verdict").textContent = verdict(...state.answers);
  openReplay();
}

async function talk(prompt, signal) {
  const said = document.createElement("p");
  said.className = "said";
  said.textContent = prompt;
  const method = at("method").value;
  const answer = new Answer(titleOf(method), isHeld());
  state.answers = [answer];
  at("talk").append(said, answer.root);
  answer.root.scrollIntoView({ block: "nearest" });
  const messages = [...state.messages, { role: "user", content: prompt }];
  at("prompt").value = "";
  await decode(answer, { ...settings(method), messages }, signal);
  state.messages = [...messages, { role: "assistant", content: answer.text }];
  at("verdict").textContent = `${answer.usage.completion_tokens} tokens in ${answer.usage.num_forwards} passes.`;
  openReplay();
}

async function ask() {
  const prompt = at("prompt").value.trim();
  if (!prompt || state.running) return;
  pause();
  at("problem").hidden = at("replay").hidden = true;
  at("verdict").textContent = "";
  if (!state.served && !(await connect())) return;
  state.running = new AbortController();
  at("go").disabled = true;
  at("stop").disabled = false;
  try {
    await (isRace() ? race : talk)(prompt, state.running.signal);
  } catch (problem) {
    const stopped = state.running.signal.aborted;
    state.running.abort(); // the other lane, too
    if (stopped) at("verdict").textContent = "Stopped.";
    else tell(problem);
    openReplay();
  } finally {
    state.running = null;
    at("go").disabled = false;
    at("stop").disabled = true;
  }
}

// Replay

function openReplay() {
  const most = Math.max(0, ...state.answers.map((answer) => answer.passes));
  if (!most) return;
  at("pass").max = most;
  at("replay").hidden = false;
  showPass(most);
}

function showPass(number) {
  at("pass").value = number;
  at("pass-value").textContent = `${number} of ${at("pass").max}`;
  at("pass").setAttribute("aria-valuetext", at("pass-value").textContent);
  for (const answer of state.answers) {
    answer.tokens.setAttribute("aria-live", "off"); // read once, when it was new
    answer.draw(number);
  }
}

function pause() {
  clearInterval(state.playing);
  state.playing = null;
  at("play").textContent = "Play";
  at("play").setAttribute("aria-pressed", "false");
}

function play() {
  if (state.playing) { pause(); return; }
  const last = Number(at("pass").max);
  if (Number(at("pass").value) >= last) showPass(0);
  at("play").textContent = "Pause";
  at("play").setAttribute("aria-pressed", "true");
  state.playing = setInterval(() => {
    const next = Number(at("pass").value) + 1;
    showPass(next);
    if (next >= last) pause();
  }, 1000 / PASSES_A_SECOND);
}

function setMode() {
  at("go").textContent = isRace() ? "Race" : "Send";
  at("lanes").hidden = !isRace();
  at("talk").hidden = at("clear").hidden = isRace();
  at("replay").hidden = true;
  at("verdict").textContent = "";
  pause();
}

at("gamma").max = GAMMAS.length - 1;
at("gamma").value = GAMMAS.indexOf(USUAL_GAMMA.exact);
slider("gamma", (index) => shownGamma(GAMMAS[index]));
at("method").addEventListener("change", () => {
  const usual = USUAL_GAMMA[at("method").value];
  if (usual === undefined) return;
  at("gamma").value = GAMMAS.indexOf(usual);
  at("gamma").dispatchEvent(new Event("input"));
});
slider("block", (index) => String(state.blocks[index]));
slider("temperature", (value) => value.toFixed(1));
at("ask").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
at("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask();
});
at("stop").addEventListener("click", () => state.running?.abort());
at("clear").addEventListener("click", () => { state.messages = []; at("talk").replaceChildren(); setMode(); });
at("key").addEventListener("change", () => { at("problem").hidden = true; connect(); });
at("pass").addEventListener("input", () => { pause(); showPass(Number(at("pass").value)); });
at("play").addEventListener("click", play);
at("numbers").addEventListener("change", () => document.body.classList.toggle("numbered", at("numbers").checked));
for (const mode of document.querySelectorAll("[name=mode]")) mode.addEventListener("change", setMode);
watchFigures(at("figures"));
connect();
