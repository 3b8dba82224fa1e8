// Asks for the state of the cluster once a second while the page is seen, and has the parts of the page drawn.

import { startChat } from "/ui/chat.js";
import { drawCluster, troubles } from "/ui/cluster.js";
import { age, byId, count, html, sync } from "/ui/dom.js";
import { drawLayers } from "/ui/layers.js";
import { startJoin } from "/ui/join.js";
import { startModels } from "/ui/models.js";
import { startPlan } from "/ui/plan.js";
import { fillRequests, watchKeys } from "/ui/requests.js";
import { drawWaterfall } from "/ui/waterfall.js";

const PERIOD_MS = 1000, PATIENCE_MS = 10_000, MEMORY_MS = 600_000;
const ADVICE = {
  0: "The numbers below are old. Is `baton up` still running? Its terminal, or the gateway's log, says why it ended. The page asks again every second.",
  401: "Enter the API key of an administrator above.",
  403: "Enter the API key of an administrator above: its line in the gateway's file of keys ends in ` admin`.",
  404: "The page is switched off at this gateway (BATON_GATEWAY_UI).",
  503: "The gateway lives, its router does not answer: look at the router's log. The page asks again every second.",
};

let state = { models: [], nodes: [], links: [], requests: [], timeline: null, planner: null };
let chosen = "", isFollowing = true, isZoomed = false, answeredAt = null, problem = null;
const seen = new Map(); // by id: the node, and when it was last registered

const key = byId("key");
key.value = sessionStorage.getItem("baton-key") ?? "";
byId("key-field").addEventListener("submit", (event) => event.preventDefault());
key.addEventListener("change", () => {
  sessionStorage.setItem("baton-key", key.value);
  refresh();
});
byId("latest").addEventListener("click", () => {
  isFollowing = !isFollowing;
  refresh();
});
byId("zoom").addEventListener("click", () => {
  isZoomed = !isZoomed;
  draw();
});
new ResizeObserver(() => draw()).observe(document.querySelector("main"));

function headers() {
  const common = { "content-type": "application/json" };
  return key.value ? { ...common, authorization: `Bearer ${key.value}` } : common;
}

/** Send a document, if there is one; return the answer's, or throw what the gateway says is wrong. */
async function ask(path, document) {
  const sent = document && { method: "POST", body: JSON.stringify(document) };
  const answer = await fetch(path, { headers: headers(), ...sent }).catch(() => null);
  const body = await answer?.json().catch(() => null);
  if (!answer?.ok || body === null) throw new Error(body?.error?.message ?? "The gateway does not answer.");
  refresh();
  return body;
}

function choose(name) {
  chosen = name;
  isFollowing = false;
  draw();
  refresh(); // brings its frames
}

function draw() {
  const { requests } = state;
  if (isFollowing || !requests.some((request) => request.name === chosen)) {
    chosen = (requests.find((request) => request.state === "done") ?? requests[0])?.name ?? "";
  }
  const request = requests.find((each) => each.name === chosen);
  const nodes = [...state.nodes, ...gone()].sort((a, b) => (a.id < b.id ? -1 : 1));
  offerModels();
  drawModels(state);
  drawPlan(state);
  byId("latest").setAttribute("aria-pressed", isFollowing);
  byId("latest").hidden = requests.length < 2;
  byId("zoom").setAttribute("aria-pressed", isZoomed);
  byId("no-request").hidden = answeredAt === null || requests.length > 0;
  byId("no-request").lastElementChild.textContent = curlLine();
  drawCluster(state, nodes, answeredAt !== null);
  fillRequests(byId("requests"), requests, chosen, choose);
  drawWaterfall(request, isZoomed);
  drawLayers(request, state.timeline);
  const doors = (state.exposures ?? []).map((door) => ["bad", `Insecure: ${door}.`]);
  const refused = (state.quarantine ?? []).map((each) => [each.is_refused ? "bad" : "warn",
    `Request ${each.fingerprint} of ${each.tenant || "everybody"} has ended ${each.falls} passes or processes: ` +
    `${each.is_refused ? "refused" : "computed alone"} for ${Math.ceil(each.seconds_left)} s.`]);
  drawAlerts([...doors, ...refused, ...(problem ? [["bad", `${problem.message} ${ADVICE[problem.status] ?? ""}`]] : []), ...troubles(state, nodes)]);
}

/** Offer the models; whoever has chosen one keeps it. */
function offerModels() {
  sync(byId("model"), state.models, (model) => model.name, () => html("option"), (option, { name, state, progress, cause }) => {
    const done = progress === null ? "" : `, ${Math.round(100 * progress)} %`;
    option.value = name;
    option.textContent = state === "serving" ? name : `${name} (${state}${done})`;
    option.title = cause;
  });
}

/** Return the nodes that were registered while this page was open and no longer are. */
function gone() {
  const present = new Set(state.nodes.map((node) => node.id));
  const missing = [...seen].filter(([id, { at }]) => !present.has(id) && answeredAt - at < MEMORY_MS);
  return missing.map(([, { node, at }]) => ({ ...node, gone_seconds: (answeredAt - at) / 1000, running: 0, waiting: 0, used_share: 0 }));
}

function drawAlerts(alerts) {
  const make = () => html("li");
  sync(byId("alerts"), alerts, ([, text]) => text.replace(/[\d.]+ (s|ms|min)\b/g, ""), make, (line, [kind, text]) => {
    line.className = kind;
    if (line.textContent !== text) line.textContent = text;
  });
}

function curlLine() {
  const body = JSON.stringify({ model: byId("model").value, messages: [{ role: "user", content: "What is 12 + 30?" }] });
  const key = byId("key").value ? ' -H "authorization: Bearer $BATON_API_KEY"' : "";
  return `curl ${location.origin}/v1/chat/completions${key} -H "content-type: application/json" -d '${body}'`;
}

async function refresh() {
  try {
    const wanted = isFollowing ? "" : `?request=${encodeURIComponent(chosen)}`;
    const answer = await fetch(`/ui/state${wanted}`, { headers: headers(), signal: AbortSignal.timeout(PATIENCE_MS) });
    byId("key-field").hidden = answer.status !== 401 && answer.status !== 403 && !key.value;
    const body = await answer.json().catch(() => null);
    if (!answer.ok || body === null) {
      throw { status: answer.status, message: body?.error?.message ?? `The gateway answered with status ${answer.status}.` };
    }
    [state, problem, answeredAt] = [body, null, Date.now()];
    for (const node of state.nodes) seen.set(node.id, { node, at: answeredAt });
  } catch (error) {
    const silent = answeredAt === null ? "" : `, for ${age((Date.now() - answeredAt) / 1000)} now`;
    problem = error.status === undefined ? { status: 0, message: `The gateway at ${location.host} does not answer${silent}.` } : error;
  }
  const status = byId("status"), at = answeredAt === null ? "" : ` at ${new Date(answeredAt).toLocaleTimeString()}`;
  status.className = problem ? "bad" : "";
  status.textContent = problem ? `Last answer${at || ": none yet"}` : `${count(state.nodes.length, "node")} · Baton ${state.version}`;
  document.body.classList.toggle("stale", problem !== null && answeredAt !== null);
  document.title = problem ? "⚠ Baton" : `Baton · ${byId("model").value || "no model"}`;
  draw();
}

async function follow() {
  for (;;) {
    if (!document.hidden) await refresh();
    await new Promise((resolve) => setTimeout(resolve, PERIOD_MS));
  }
}

startChat(headers, () => byId("model").value);
startJoin(ask);
const drawModels = startModels(ask), drawPlan = startPlan(ask, () => byId("model").value);
watchKeys(byId("requests"), choose);
follow();
