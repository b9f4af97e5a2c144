// A conversation with a served decoder, streamed; everything is written as text, never as markup.
import { colours, scaleStops } from "./draw.js";
import { ExpertMap, drawPath, hue } from "./experts.js";

const at = (id) => document.getElementById(id), text = (id, value) => { at(id).textContent = value; };
const chosen = new URLSearchParams(location.search);
const chat = { mode: "chat", messages: [], answer: null, stopping: null, pointed: null };
const map = new ExpertMap(at("experts"), () => tint());

async function ask(path, options = {}) {
  const headers = { "x-smoe-page": "1", "content-type": "application/json" };
  const answer = await fetch(new URL(path, location.origin), { cache: "no-store", headers, ...options });
  if (answer.status === 401) location.assign("login"); // the session has ended
  return answer;
}

async function models() {
  const answer = await ask("/ui/v1/models");
  if (!answer.ok) throw new Error(`the list of models answered ${answer.status}`);
  const there = (await answer.json()).data, decoders = there.filter((one) => one.max_model_len);
  const names = [...new Set([...decoders, ...there].map((one) => one.id))]; // encoders last: they write no text
  at("model").replaceChildren(...names.map((name) => new Option(name, name)));
  if (names.includes(chosen.get("model"))) at("model").value = chosen.get("model");
  state(decoders.length ? "ready" : `no ${names.length ? "decoder" : "pipeline"} is deployed`, decoders.length ? "good" : "warn");
  if (names.length) await shape();
}

// How many experts each layer has, by what is deployed.
async function shape() {
  const [name, namespace = "openfaas-fn"] = at("model").value.split(".");
  const answer = await ask(`/system/functions?namespace=${encodeURIComponent(namespace)}`), layers = [];
  for (const one of answer.ok ? await answer.json() : []) {
    if (one.labels?.["smoe.pipeline"] !== name) continue;
    for (const id of (one.annotations?.["smoe.nodes"] ?? one.labels?.["smoe.nodes"] ?? "").split(/[,_]/)) {
      const [kind, layer, expert] = id.split("-");
      if (kind === "expert") layers[Number(layer)] = Math.max(layers[Number(layer)] ?? 0, Number(expert) + 1);
    }
  }
  map.reset(Array.from(layers, (experts) => experts ?? 0));
  map.draw(null);
  drawPath(at("path"), [], map.shape);
}

function state(words, kind) { text("state", words); at("state").className = `tag ${kind}`; }

function message(role, words) {
  const made = document.createElement("div");
  made.className = `message ${role}`; made.textContent = words;
  at("hint").hidden = true;
  at("messages").append(made);
  made.scrollIntoView({ block: "end" });
  return made;
}

function body(prompt) {
  const common = { model: at("model").value, stream: true, return_routed_experts: true, max_tokens: Number(at("most").value), temperature: Number(at("temperature").value) };
  return chat.mode === "chat" ? { ...common, messages: chat.messages } : { ...common, prompt };
}

async function send(prompt) {
  if (chat.stopping) return;
  message("user", prompt);
  chat.messages.push({ role: "user", content: prompt });
  const box = message("assistant writing", ""), stopping = new AbortController();
  const answer = { box, tokens: [], words: "", began: performance.now(), first: null, last: null };
  chat.answer = answer;
  underWay(stopping);
  map.reset(map.shape);
  show();
  state("writing", "good");
  let end = "", now = ["ready", "good"];
  try {
    end = await stream(prompt, stopping.signal, answer);
  } catch (error) {
    const stopped = error.name === "AbortError";
    [end, now] = stopped ? ["stopped", ["stopped", "warn"]] : [error.message, ["failed", "bad"]];
    if (!stopped) box.classList.add("failed");
  }
  if (chat.answer !== answer) return; // it was cleared away, and another one may be under way
  state(...now);
  finish(answer, end);
}

function underWay(stopping) {
  chat.stopping = stopping;
  at("send").disabled = stopping !== null; at("stop").disabled = stopping === null;
}

function finish(answer, end) {
  const box = answer.box, words = { stop: "", length: "ended at the limit of tokens" }[end] ?? end;
  box.classList.remove("writing");
  if (words) {
    const note = document.createElement("span");
    note.className = box.classList.contains("failed") ? "end bad" : "end"; note.textContent = words;
    box.append(note);
  }
  if (answer.words) chat.messages.push({ role: "assistant", content: answer.words });
  else chat.messages.pop();
  underWay(null);
  show();
}

async function stream(prompt, signal, answer) {
  const path = chat.mode === "chat" ? "/ui/v1/chat/completions" : "/ui/v1/completions";
  const reply = await ask(path, { method: "POST", signal, body: JSON.stringify(body(prompt)) });
  if (!reply.ok) {
    const error = (await reply.json().catch(() => null))?.error;
    if (error?.code === "no_chat_template" && chat.mode === "chat") {
      mode("text");
      return stream(prompt, signal, answer);
    }
    throw new Error(error?.message ?? `the gateway answered ${reply.status}`);
  }
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", end = "the stream broke off";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return end;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) end = take(event.replace(/^data: /, ""), answer) ?? end;
  }
}

// One event; returns why the text has ended, where it has.
function take(data, answer) {
  if (data === "[DONE]") return null;
  const event = JSON.parse(data);
  if (event.error) throw new Error(event.error.message);
  const choice = event.choices[0];
  if (!choice) return null;
  add(answer, choice.delta?.content ?? choice.text ?? "", choice.routed_experts ?? []);
  return choice.finish_reason;
}

function add(answer, words, experts) {
  if (chat.answer !== answer) return;
  const now = performance.now();
  if (experts.length) { answer.first ??= now; answer.last = now; }
  answer.words += words;
  for (const one of experts) { answer.tokens.push(one); map.add(one); }
  if (words) answer.box.append(token(words, experts));
  const messages = at("messages");
  if (messages.scrollHeight - messages.scrollTop - messages.clientHeight < 120) messages.scrollTop = messages.scrollHeight;
  schedule();
}

// Characters of one or several tokens; pointing at them shows their experts.
function token(words, experts) {
  const made = document.createElement("span");
  made.className = "token"; made.textContent = words; made.experts = experts.at(-1) ?? null;
  made.addEventListener("pointerenter", () => { chat.pointed = made.experts; schedule(); });
  made.addEventListener("pointerleave", () => { chat.pointed = null; schedule(); });
  colourToken(made);
  return made;
}

function colourToken(made) {
  const expert = map.layer == null ? null : made.experts?.[map.layer]?.[0];
  made.style.backgroundColor = expert == null ? "" : `color-mix(in srgb, ${hue(expert)} 42%, transparent)`;
}

function tint() { for (const one of document.querySelectorAll(".token")) colourToken(one); }

let scheduled = false;
function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => { scheduled = false; show(); });
}

function show() {
  const answer = chat.answer, tokens = answer?.tokens ?? [], took = answer?.last > answer?.first ? (answer.last - answer.first) / 1000 : null;
  measure("speed", took && tokens.length > 1 ? ((tokens.length - 1) / took).toFixed(1) : null, "tokens/s");
  measure("first", answer?.first != null ? Math.round(answer.first - answer.began) : null, "ms");
  measure("count", answer ? tokens.length : null, "");
  text("high", map.most ? `${map.most} tokens` : "–");
  map.draw(chat.pointed ?? tokens.at(-1));
  drawPath(at("path"), tokens, map.shape);
}

function measure(id, value, unit) {
  const small = document.createElement("small");
  small.textContent = value == null ? "" : ` ${unit}`;
  at(id).replaceChildren(value ?? "–", small);
}

function mode(name) {
  chat.mode = name;
  for (const one of at("modes").children) one.setAttribute("aria-pressed", one.dataset.mode === name);
}

function clear() {
  if (chat.stopping) {
    chat.stopping.abort();
    underWay(null);
    state("stopped", "warn");
  }
  chat.messages = []; chat.answer = null;
  at("messages").replaceChildren(at("hint"));
  at("hint").hidden = false;
  map.reset(map.shape);
  show();
}

at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const prompt = at("prompt").value;
  if (!prompt.trim() || !at("model").value || chat.stopping) return;
  at("prompt").value = "";
  send(prompt);
});
at("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); at("composer").requestSubmit(); }
});
at("stop").addEventListener("click", () => chat.stopping?.abort());
at("clear").addEventListener("click", clear);
at("model").addEventListener("change", () => { clear(); shape(); });
for (const one of at("modes").children) one.addEventListener("click", () => mode(one.dataset.mode));

const dark = matchMedia("(prefers-color-scheme: dark)");
const ramp = () => { colours(dark.matches); document.documentElement.style.setProperty("--heat-stops", scaleStops()); show(); };
dark.addEventListener("change", ramp);
addEventListener("resize", schedule);
ramp();
models().catch((error) => state(error.message, "bad"));
