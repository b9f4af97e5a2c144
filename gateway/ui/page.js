// Polls the gateway and fills the page. Everything is written as text, never as markup.
import { colours, heat, lineChart, scaleStops, table } from "./draw.js";

const VIEW_MS = 2000, FUNCTIONS_MS = 5000, TIMEOUT_MS = 8000, OLD_S = 60;
const MEASURES = {
  tokens: { title: "tokens/s", unit: (v) => number(v), of: (n) => n.tokens_per_s },
  p95: { title: "P95", unit: (v) => seconds(v), of: (n) => n.latency_p95_s },
  replicas: { title: "replicas", unit: (v) => number(v), of: (n) => n.replicas },
  cpu: { title: "CPU use", unit: (v) => percent(v), of: (n) => n.cpu_utilisation, most: 1 },
  slots: { title: "slots in use", unit: (v) => percent(v), of: (n) => n.concurrency_utilisation, most: 1 },
};
const chosen = new URLSearchParams(location.search), namespace = chosen.get("namespace") || "openfaas-fn";
const page = { views: [], functions: [], replicas: {}, chosen: chosen.get("pipeline"), measure: null, generation: [] };
const at = (id) => document.getElementById(id);

const number = (v) => v == null ? "–" : v >= 10000 ? `${(v / 1000).toFixed(v >= 1e5 ? 0 : 1)}k` : v >= 100 || Number.isInteger(v) ? v.toFixed(0) : v >= 10 ? v.toFixed(1) : v.toFixed(2);
const seconds = (v) => v == null ? "–" : v >= 10 ? `${v.toFixed(1)} s` : v >= 1 ? `${v.toFixed(2)} s` : `${(v * 1000).toFixed(v < 0.01 ? 1 : 0)} ms`;
const percent = (v) => v == null ? "–" : `${(v * 100).toFixed(0)}%`;
const ofTarget = (v) => v < 2 ? percent(v) : `${Number(v.toPrecision(2))} × the target`;
// As in the terminal (autoscaler/prices.py): three significant digits.
const money = (v, currency) => v == null ? "–" : `${currency === "USD" ? "$" : `${currency ?? ""} `.trimStart()}${v >= 99.95 ? Math.round(v).toLocaleString("en-US") : v.toPrecision(3)}`;
const text = (id, value) => { at(id).textContent = value; };
const withUnit = (id, value, unit) => { const small = document.createElement("small"); small.textContent = ` ${unit}`; at(id).replaceChildren(value, small); };

async function ask(path) {
  const answer = await fetch(new URL(path, location.origin), { signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store", headers: { "x-smoe-page": "1" } });
  if (answer.status === 401) location.assign("login"); // the session has ended
  if (!answer.ok) throw new Error(`${path} answered ${answer.status}`);
  return answer.json();
}

function nodesOf(pipeline, view) {
  // The controller's window where there is one, joined with what is deployed now; without it, the labels of functions.
  const deployed = new Map(page.functions.filter((f) => f.labels?.["smoe.pipeline"] === pipeline).map((f) => [f.name, f]));
  const seen = view?.nodes ?? [...deployed.values()].flatMap((f) => (f.annotations?.["smoe.nodes"] ?? f.labels?.["smoe.nodes"] ?? "").split(/[,_]/).map((id) => nodeOf(id, f.name)));
  return seen.filter((node) => node.node).map((node) => {
    const live = deployed.get(node.function);
    return { ...node, live, replicas: live?.replicas ?? node.configuration?.replicas ?? null, ready: live?.availableReplicas ?? node.ready_replicas ?? null };
  });
}

function nodeOf(id, name) {
  const [kind, layer, expert] = id.split("-");
  return { node: id, function: name, kind, layer: layer === undefined ? null : Number(layer), expert: expert === undefined ? null : Number(expert) };
}

function configured(node) {
  // Limits as deployed; the controller's reading where the gateway does not tell them.
  const limits = node.live?.limits ?? {}, known = node.configuration;
  const gpu = limits["nvidia.com/gpu"];
  const compute = gpu ? `${gpu}/10 GPU` : limits.cpu ? cores(limits.cpu) : known ? (known.gpu_share ? `${known.gpu_share} GPU` : cores(String(known.cpu_cores))) : "–";
  const memory = limits.memory ?? (known ? `${known.memory_mb}Mi` : "–");
  return { memory: memory.replace(/Mi$/, " MiB").replace(/Gi$/, " GiB"), compute, slots: known?.concurrency ?? node.live?.envVars?.max_inflight ?? "–" };
}

const cores = (cpu) => { const n = cpu.endsWith("m") ? parseInt(cpu, 10) / 1000 : Number(cpu); return `${number(n)} ${n === 1 ? "core" : "cores"}`; };

function show() {
  const names = [...new Set([...page.views.map((v) => v.pipeline), ...page.functions.map((f) => f.labels?.["smoe.pipeline"]).filter(Boolean)])].sort();
  const pipeline = names.includes(page.chosen) ? page.chosen : names[0];
  const view = page.views.find((v) => v.pipeline === pipeline && v.end_s);
  document.title = pipeline ? `${pipeline} · sMoE` : "sMoE";
  text("pipeline", pipeline ?? "no pipeline is deployed");
  at("pipelines").replaceChildren(...(names.length > 1 ? names.map((name) => button(name, name === pipeline, () => { page.chosen = name; show(); })) : []));
  const nodes = pipeline ? nodesOf(pipeline, view) : [];
  showState(view);
  showFigures(view, nodes);
  showCharts(view);
  showHeat(nodes, view);
  showInstances(pipeline);
  showMachines(nodes);
  showDecisions(view);
  showConfiguration(nodes);
}

function button(title, pressed, act) {
  const made = document.createElement("button");
  made.type = "button"; made.textContent = title; made.setAttribute("aria-pressed", pressed); made.addEventListener("click", act);
  return made;
}

function showState(view) {
  const age = view ? Date.now() / 1000 - view.end_s : null, state = at("state");
  const [words, kind] = page.error ? [page.error, "bad"] : !view ? ["no controller", "warn"] : age > OLD_S ? [`controller silent for ${number(Math.round(age / 60))} min`, "bad"]
    : view.stale ? ["holding: old data", "warn"] : !view.leads ? ["standing by", "warn"] : [view.dry_run ? "watching" : "live", "good"];
  state.textContent = words; state.className = `tag ${kind}`;
  text("policy", view ? `policy ${view.policy}` : "");
  const notes = [...(view?.problems ?? []), ...(view?.conditions ?? [])];
  if (!view && !page.error) notes.push("No controller reports to this gateway: windows, cost and decisions are not known. Start one with smoe autoscale.");
  at("notice").hidden = !notes.length;
  text("notice", notes.slice(0, 4).join("\n") + (notes.length > 4 ? `\nand ${notes.length - 4} more` : ""));
}

function showFigures(view, nodes) {
  const p95 = view?.latency_p95_s, slo = view?.slo_s, gauge = at("gauge"), part = p95 != null && slo ? p95 / slo : null;
  text("p95", seconds(p95));
  text("slo", slo ? `of ${seconds(slo)}${part == null ? "" : ` · ${ofTarget(part)}`}` : "no target set");
  gauge.className = `gauge ${slo ? "target" : ""} ${part > 1 ? "bad" : part > 0.8 ? "warn" : ""}`;
  gauge.firstElementChild.style.width = part == null ? "0" : `${Math.min(100, part * 66.66)}%`;
  withUnit("rps", number(view?.requests_per_s), "/s");
  text("failed", view?.failed ? `${number(view.failed)} failed in this window` : view ? "none failed" : "");
  withUnit("tps", number(view?.tokens_per_s), "/s");
  text("inflight", view?.in_flight == null ? "" : `${number(view.in_flight)} requests in flight`);
  withUnit("cost", money(view?.cost?.provisioned_per_hour, view?.currency), "an hour");
  text("busy", view?.cost?.busy_per_hour == null ? "" : `${money(view.cost.busy_per_hour, view.currency)} busy`);
  const byFunction = new Map(nodes.map((n) => [n.function, n])), sum = (key) => [...byFunction.values()].reduce((s, n) => s + (n[key] ?? 0), 0);
  const ready = sum("ready"), wanted = sum("replicas");
  withUnit("replicas", `${ready}`, ready === wanted ? "all ready" : `ready of ${wanted}`);
  text("functions", nodes.length ? `${byFunction.size} functions` : "");
}

function showCharts(view) {
  const rows = (view?.history ?? []).map((row) => ({ ...row, time: new Date(row.end_s * 1000) }));
  const waits = (r) => r.p95_s == null && r.in_flight ? `no answer while ${number(r.in_flight)} requests waited` : "";
  lineChart(at("latency"), rows.map((r) => [r.time, r.p95_s, waits(r)]), seconds, view?.slo_s);
  lineChart(at("costs"), rows.map((r) => [r.time, r.provisioned_per_hour]), (v) => money(v, view?.currency));
}

function showHeat(nodes, view) {
  const chosen = page.measure ?? (view ? "tokens" : "replicas"), measure = MEASURES[chosen];
  at("measures").replaceChildren(...Object.entries(MEASURES).map(([key, one]) => button(one.title, key === chosen, () => { page.measure = key; show(); })));
  const experts = nodes.filter((n) => n.kind === "expert"), values = experts.map(measure.of).filter((v) => v != null);
  const most = Math.max(measure.most ?? 0, ...values, 0), slo = view?.slo_s;
  text("low", "0"); text("high", values.length ? measure.unit(most) : "–");
  heat(at("heat"), nodes, {
    value: (n) => measure.of(n), write: measure.unit, most,
    late: (n) => slo != null && n.latency_p95_s != null && n.latency_p95_s > slo,
    point: (n) => showDetail(n),
  });
}

function showDetail(node) {
  const c = configured(node), name = document.createElement("b");
  name.textContent = node.node;
  const parts = [`${node.ready ?? "–"} of ${node.replicas ?? "–"} replicas`, c.memory, c.compute, `${c.slots} calls at once`,
    `${number(node.tokens_per_s)} tokens/s`, `P95 ${seconds(node.latency_p95_s)}`, `CPU ${percent(node.cpu_utilisation)}`, `slots ${percent(node.concurrency_utilisation)}`];
  if (node.waiting) parts.push(`${number(node.waiting)} waiting`);
  const placed = node.live?.annotations?.["smoe.placement"];
  if (placed) parts.splice(1, 0, `on ${placed.replaceAll(",", ", ")}`);
  at("detail").replaceChildren(name, `  ${parts.join("  ·  ")}`);
}

function showInstances(pipeline) {
  // A decoder's instances, as its ingress reports them.
  const found = page.generation.find((one) => one.pipeline === pipeline), moved = found?.moved;
  at("instances").hidden = !found;
  if (!found) return;
  text("schedule", found.schedule === "colocated" ? "colocated" : `${found.schedule} for TTFT ${seconds(found.ttft_s)}, TPOT ${seconds(found.tpot_s)}  ·  ${found.flips} flips  ·  `
    + `${moved.texts} texts moved${moved.texts ? `, ${seconds(moved.took_ms / 1000)} each` : ""}${found.joining ? `  ·  ${found.joining} joining` : ""}`);
  const rows = [...found.instances].sort((a, b) => a.instance - b.instance).map((one) => [[one.instance, "nowrap"], [one.role, "tag", "tag"], [one.running, "n"], [one.queue, "n"], [one.arriving, "n"],
    [one.pages ? percent(one.pages_used / one.pages) : "–", "n"], [one.interval_s ? seconds(one.interval_s) : "–", "n"]]);
  table(at("instance-table"), rows, "No instance yet: not every segment has a ready replica.");
}

function showMachines(nodes) {
  // Machines that replicas run on, from the replica feed; none where replicas have no machine.
  const functions = new Set(nodes.map((n) => n.function)), rows = new Map();
  for (const [key, { replicas }] of Object.entries(page.replicas)) {
    const name = key.slice(0, -namespace.length - 1);
    for (const replica of key === `${name}.${namespace}` && functions.has(name) ? replicas : []) {
      if (!replica.node) continue;
      const row = rows.get(replica.node) ?? { functions: new Set(), ready: 0, starting: 0, draining: 0 };
      row.functions.add(name); row[replica.state] += 1;
      rows.set(replica.node, row);
    }
  }
  at("machines").hidden = !rows.size;
  table(at("machine-table"), [...rows].sort().map(([name, row]) => [[name, "nowrap"], [row.functions.size, "n"], [row.ready, "n"], [row.starting, "n"], [row.draining, "n"]]), "");
}

function changeOf(d) {
  const parts = [], [before, after] = [d.present, d.target].map((c) => ({ ...c, standbys: c.burst?.standbys ?? 0 }));
  const step = (name, key, unit = "") => { if (before[key] !== after[key]) parts.push(`${name} ${before[key]} → ${after[key]}${unit}`); };
  step("replicas", "replicas"); step("standbys", "standbys"); step("memory", "memory_mb", " MiB"); step("cores", "cpu_cores"); step("GPU", "gpu_share"); step("calls at once", "concurrency");
  return parts.join(", ") || (JSON.stringify(before.burst) === JSON.stringify(after.burst) ? "none" : "activation of standbys");
}

const KINDS = { applied: "good", failed: "bad", held: "warn", "dry run": "", kept: "" };

function showDecisions(view) {
  const rows = [...(view?.decisions ?? [])].reverse().map((d) => [
    [new Date(d.time_s * 1000).toLocaleTimeString([], { hour12: false }), "soft nowrap"], [d.function, "nowrap"], [changeOf(d), "nowrap"], [d.reason], [d.limits_hit.join("; ") || "–", "soft"], [d.result, `tag ${KINDS[d.result] ?? ""}`, "tag"],
  ]);
  table(at("decisions"), rows, view ? "No decision has changed anything yet." : "No controller has reported to this gateway.");
}

function showConfiguration(nodes) {
  const byFunction = new Map();
  for (const node of nodes) byFunction.set(node.function, [...(byFunction.get(node.function) ?? []), node]);
  const rows = [...byFunction].map(([name, served]) => {
    const node = served[0], c = configured(node), slowest = Math.max(...served.map((n) => n.latency_p95_s ?? -1));
    return [[name, "nowrap"], [served.length === 1 ? node.node : `${served.length} nodes`, "soft"], [node.ready ?? "–", "n"], [node.replicas ?? "–", "n"], [c.memory, "n"], [c.compute, "n"], [c.slots, "n"],
      [slowest < 0 ? "–" : seconds(slowest), "n"], [node.live ? number(node.live.invocationCount ?? 0) : "–", "n soft"]];
  });
  table(at("configuration"), rows, "No function of a pipeline is deployed.");
}

async function poll(path, take, every) {
  for (;;) {
    try { take(await ask(path)); page.error = ""; } catch (error) { page.error = error.name === "TimeoutError" ? "the gateway is slow" : "the gateway does not answer"; }
    show();
    await new Promise((resolve) => setTimeout(resolve, document.hidden ? 5 * every : every));
  }
}

document.documentElement.style.setProperty("--heat-stops", scaleStops());
colours(matchMedia("(prefers-color-scheme: dark)").matches);
poll("/system/view", (found) => { page.views = found.views.filter((v) => (v.namespace ?? "openfaas-fn") === namespace); }, VIEW_MS);
poll(`/system/functions?namespace=${encodeURIComponent(namespace)}`, (found) => { page.functions = found; }, FUNCTIONS_MS);
poll("/system/replicas", (found) => { page.replicas = found.functions; }, FUNCTIONS_MS);
poll("/system/instances", (found) => { page.generation = found.pipelines.filter((one) => one.namespace === namespace); }, VIEW_MS);
