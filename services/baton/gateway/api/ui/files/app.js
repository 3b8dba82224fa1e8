// Asks for the state of the cluster once a second while the page is seen, and has the parts of the page drawn.

import { startChat } from "/ui/chat.js";
import { drawCluster } from "/ui/cluster.js";
import { byId } from "/ui/dom.js";
import { fillRequests } from "/ui/requests.js";
import { drawWaterfall } from "/ui/waterfall.js";

const PERIOD_MS = 1000;

let state = { model: "", nodes: [], links: [], requests: [] };
let chosen = "";

const key = byId("key");
key.value = sessionStorage.getItem("baton-key") ?? "";
byId("key-field").addEventListener("submit", (event) => event.preventDefault());
key.addEventListener("change", () => {
  sessionStorage.setItem("baton-key", key.value);
  refresh();
});

function headers() {
  const common = { "content-type": "application/json" };
  return key.value ? { ...common, authorization: `Bearer ${key.value}` } : common;
}

function choose(name) {
  chosen = name;
  draw();
}

function draw() {
  byId("model").textContent = state.model;
  drawCluster(byId("cluster"), state);
  const known = state.requests.some((request) => request.name === chosen);
  if (!known) chosen = state.requests[0]?.name ?? "";
  fillRequests(byId("requests"), state.requests, chosen, choose);
  drawWaterfall(byId("waterfall"), state.requests.find((request) => request.name === chosen));
}

async function refresh() {
  const status = byId("status");
  try {
    const answer = await fetch("/ui/state", { headers: headers() });
    byId("key-field").hidden = answer.status !== 401 && !key.value;
    const body = await answer.json();
    if (!answer.ok) throw new Error(body.error.message);
    state = body;
    status.className = "";
    status.textContent = `${state.nodes.length} nodes · Baton ${state.version}`;
    draw();
  } catch (error) {
    status.className = "bad";
    status.textContent = error.message;
  }
}

async function follow() {
  for (;;) {
    if (!document.hidden) await refresh();
    await new Promise((resolve) => setTimeout(resolve, PERIOD_MS));
  }
}

startChat(headers, () => state.model);
follow();
