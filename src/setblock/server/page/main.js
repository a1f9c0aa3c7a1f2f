// The page: sends prompts, and shows the turns, the newest at the bottom, above the prompt.

import { Answer } from "./answer.js";
import { at, element } from "./elements.js";
import * as settings from "./settings.js";
import { chat, model, Problem } from "./stream.js";
import { Turn } from "./turn.js";

const NEAR_THE_END = 160; // pixels, within which the page follows what is written
const state = { served: null, messages: [], running: null };
const hasKeyboard = !matchMedia("(pointer: coarse)").matches; // a touch keyboard has no Shift+Enter

const isCompared = () => document.querySelector("[name=mode]:checked").value === "compare";

async function connect() {
  try {
    state.served = await model(settings.key());
  } catch (problem) {
    at("model").textContent = askForKey(problem) ? "needs an API key" : problem.message;
    return;
  }
  const card = state.served.setblock;
  at("model").textContent = state.served.id;
  document.title = `${state.served.id} · setblock`;
  const parts = (card.notice ?? "").split("`"); // as in Markdown, every other one is code
  at("notice").replaceChildren(...parts.map((part, place) => element(place % 2 ? "code" : "span", "", part)));
  at("notice").hidden = !card.notice;
  at("sample").textContent = card.example ?? "";
  at("sample").hidden = !card.example;
  settings.show(card);
}

// Returns whether the problem is a missing API key, and if so, focuses its field.
function askForKey(problem) {
  if (!(problem instanceof Problem) || problem.status !== 401) return false;
  at("side").open = at("key-box").open = true;
  at("key").focus();
  return true;
}

// One prompt

async function decode(turn, answer, body, signal) {
  for await (const chunk of chat(body, settings.key(), signal)) {
    if (chunk.usage) answer.usage = chunk.usage;
    for (const choice of chunk.choices) {
      answer.text += choice.delta.content ?? "";
      if (choice.pass_event) answer.add(choice.pass_event);
      if (choice.tokens) answer.finish(choice.tokens, choice.finish_reason);
    }
    turn.scale();
    follow();
  }
}

function begin(prompt) {
  const method = settings.method();
  const methods = isCompared() && method !== "ntp" ? [method, "ntp"] : [method];
  const isHeld = settings.isHeld();
  const answers = methods.map((each) => new Answer(settings.titleOf(each), { isPlain: each === "ntp", isHeld }));
  const turn = new Turn(prompt, answers);
  at("welcome").hidden = true;
  at("log").append(turn.root);
  scrollTo(0, document.documentElement.scrollHeight);
  const messages = [...(isCompared() ? [] : state.messages), { role: "user", content: prompt }];
  const seed = Number(at("temperature").value) ? Math.floor(Math.random() * 2 ** 31) : 0; // the same for both answers
  const head = { model: state.served.id, messages };
  return { turn, messages, bodies: methods.map((each) => ({ ...head, ...settings.body(each, seed) })) };
}

async function ask(prompt) {
  if (!prompt || state.running) return;
  if (!state.served) await connect();
  if (!state.served) return;
  const isChat = !isCompared();
  const { turn, messages, bodies } = begin(prompt);
  const running = new AbortController();
  setRunning(running);
  type("");
  try {
    await Promise.all(turn.answers.map((answer, lane) => decode(turn, answer, bodies[lane], running.signal)));
    turn.finish();
    if (isChat) state.messages = [...messages, { role: "assistant", content: turn.answers[0].text }];
  } catch (problem) {
    const isStopped = running.signal.aborted;
    running.abort(); // the other answer, too
    if (isStopped) {
      turn.say("Stopped.");
    } else {
      turn.fail(problem.message);
      if (!at("prompt").value) type(prompt); // nobody types it twice
      askForKey(problem);
    }
  } finally {
    for (const answer of turn.answers) answer.close();
    setRunning(null);
    turn.addReplay();
    follow();
  }
}

function setRunning(running) {
  state.running = running;
  at("go").hidden = running !== null;
  at("stop").hidden = running === null;
  showActions();
}

// Follow what is written, unless the user has scrolled up to read.
function follow() {
  const page = document.documentElement;
  if (page.scrollHeight - innerHeight - scrollY < NEAR_THE_END) scrollTo(0, page.scrollHeight);
}

// The prompt

function type(text) {
  at("prompt").value = text;
  fit();
}

function fit() {
  const prompt = at("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
}

function showActions() {
  at("clear").hidden = state.running !== null || at("welcome").hidden === false;
  const each = isCompared() ? "Each prompt is answered alone." : "Each prompt continues the chat.";
  at("hint").textContent = hasKeyboard ? `${each} Shift+Enter: new line` : each;
}

function clear() {
  state.messages = [];
  for (const turn of document.querySelectorAll(".turn")) turn.remove();
  at("welcome").hidden = false;
  showActions();
  at("prompt").focus();
}

at("ask").addEventListener("submit", (event) => { event.preventDefault(); ask(at("prompt").value.trim()); });
at("prompt").addEventListener("input", fit);
at("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  if (!hasKeyboard && !event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  ask(at("prompt").value.trim());
});
at("sample").addEventListener("click", () => ask(at("sample").textContent));
at("stop").addEventListener("click", () => state.running?.abort());
at("clear").addEventListener("click", clear);
at("key").addEventListener("change", connect);
at("keys").addEventListener("submit", (event) => { event.preventDefault(); connect(); });
at("numbers").addEventListener("change", () => document.body.classList.toggle("numbered", at("numbers").checked));
for (const mode of document.querySelectorAll("[name=mode]")) mode.addEventListener("change", showActions);

// Beside the answers the settings are always there; above them they fold.
const wide = matchMedia("(min-width: 60rem)");
const unfold = () => { at("side").open = wide.matches; };
wide.addEventListener("change", unfold);
unfold();
showActions();
connect();
if (hasKeyboard) at("prompt").focus();
