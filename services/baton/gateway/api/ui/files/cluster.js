// The cluster: who computes prompts, who generates, what each is doing, and over which links KV comes to whom.

import { age, amount, byId, count, duration, put, span, stamp, svg, sync } from "/ui/dom.js";

const MAX_DRAWN = 4; // nodes on either side between which lines are drawn
const SHOWN_LINKS = 4; // into a node; of more than one beyond, only those of which there is something to say
const SLOW_SHARE = 0.25; // of what half of the links reach

/** Draw all nodes: those registered, and those that no longer are. */
export function drawCluster(state, nodes, isKnown) {
  const senders = nodes.filter((node) => isSender(node, state.requests));
  const receivers = nodes.filter((node) => !senders.includes(node));
  const links = linksInUse(state);
  byId("no-node").hidden = !isKnown || nodes.length > 0;
  byId("no-node").textContent =
    "No node is registered with the router. Start one with `baton serve worker`, or with `baton serve prefill` or `baton serve decode`, which pin its part, " +
    "and the router's address (--router-address HOST:PORT); it appears here once it has loaded the model.";
  byId("cluster").hidden = nodes.length === 0;
  byId("cluster").className = senders.length && receivers.length && Math.max(senders.length, receivers.length) <= MAX_DRAWN ? "drawn" : "";
  document.body.classList.toggle("many", nodes.length > 2 * MAX_DRAWN);
  drawSide(byId("senders"), "Prefill", senders, links, state);
  drawSide(byId("receivers"), receivers.some((node) => node.role === "worker") ? "Decode, or any part" : "Decode", receivers, links, state);
  drawSummary(state, nodes);
  drawLines(links);
}

/** Return what a person should know: [kind, sentence]. */
export function troubles(state, nodes) {
  const found = [];
  for (const node of nodes) {
    if (node.gone_seconds !== undefined) found.push(["bad", `${node.id} has left the cluster, ${age(node.gone_seconds)} ago; if nobody stopped it, its log says why.`]);
    else if (node.trouble === "draining") found.push(["warn", `${node.id} is draining: it finishes what it has and takes no new requests.`]);
    else if (node.trouble) found.push(["bad", `${node.id} takes no requests: ${node.trouble}.`]);
    else if (node.is_sparing_memory) found.push(["warn", `${node.id} is short of memory: it admits one request at a time.`]);
  }
  if (nodes.length && !nodes.some((node) => node.role !== "prefill" && !node.trouble && node.gone_seconds === undefined)) {
    found.push(["bad", "No node can decode: requests wait, and are refused in the end."]);
  }
  const failed = state.requests.filter((request) => request.state === "failed");
  if (failed.length) found.push(["bad", `${failed.length} of the last ${count(state.requests.length, "request")} failed; the latest: ${failed[0].error}`]);
  return found;
}

/** Return each link with what goes over it: how many requests now, and the last one that did. */
function linksInUse(state) {
  const rates = state.links.map((link) => link.bytes_per_second).sort((a, b) => a - b);
  const fastest = rates.at(-1), slow = SLOW_SHARE * rates[Math.floor(rates.length / 2)];
  return state.links.map((link) => {
    const users = state.requests.filter((request) => request.decode_node === link.to && source(request) === link.from);
    const last = users.find((request) => request.kv_bytes > 0);
    const busy = users.filter(isOnItsWay).length;
    return { ...link, share: link.bytes_per_second / fastest, is_slow: link.bytes_per_second < slow, busy, last };
  });
}

const isOnItsWay = (request) => request.state === "prefilling" || (request.state === "decoding" && request.output_tokens < 2);

/** Return from where a request's KV comes; empty: it is computed where it is decoded. */
const source = (request) => request.pull_node || (request.prefill_node === request.decode_node ? "" : request.prefill_node);

/** Return of the last requests how many prompts a node computed for others, and how many outputs it decoded. */
const partsOf = (node, requests) => [
  requests.filter((request) => !request.pull_node && source(request) === node.id).length,
  requests.filter((request) => request.decode_node === node.id).length,
];

/** Return whether a node prefills for others rather than decodes: because it is pinned to that, or of late. */
function isSender(node, requests) {
  const [sent, decoded] = partsOf(node, requests);
  return node.role === "prefill" || (node.role === "worker" && sent > decoded);
}

function drawSide(side, title, nodes, links, state) {
  side.hidden = nodes.length === 0;
  put(side, "h3", `${title} · ${count(nodes.length, "node")}`);
  sync(side.querySelector(".nodes"), nodes, (node) => node.id, () => stamp("node"), (card, node) => {
    fillNode(card, node, state);
    fillLinks(card, links.filter((link) => link.to === node.id));
  });
}

function fillNode(card, node, { models, requests }) {
  const [kind, word] = condition(node);
  card.className = `node ${kind}`;
  put(card, ".name", node.id);
  put(card, ".badge", word);
  const rates = [node.role === "decode" ? "" : amount(node.prefill_flops, "FLOP/s"), node.role === "prefill" ? "" : amount(node.decode_bytes_per_second, "B/s")];
  const speed = rates.filter(Boolean).join(", "), isWorker = node.role === "worker", [sent, decoded] = partsOf(node, requests);
  const parts = [isWorker ? "any part" : `pinned to ${node.role}`, isWorker && sent + decoded ? `of late ${count(sent, "prompt")} for others, ${decoded} decoded` : "", node.device.startsWith(node.engine) ? "" : node.engine, node.device, models.length === 1 ? "" : `serves ${node.model}`, `${speed} (${node.profile_source})`];
  put(card, ".device", parts.filter(Boolean).join(" · "));
  put(card, ".load", loadOf(node).map((part) => part.replaceAll(" ", "\u00a0")).join(" · "));
  put(card, ".share", `${Math.round(100 * node.used_share)} % of ${amount(node.pool_tokens, "")} tokens`.replace("  ", " "));
  span(card.querySelector(".kv .fill"), 0, node.used_share);
}

function loadOf({ running, waiting, pending_prompt_tokens: pending, landing_bytes: landing, system }) {
  const parts = [`${running} running`, `${waiting} waiting`];
  if (pending > 0) parts.push(`${count(Number(pending), "prompt token")} to compute`);
  if (landing > 0) parts.push(`${amount(Number(landing), "B")} of KV landing`);
  if (system.gpu_usage !== undefined) parts.push(`GPU ${Math.round(100 * system.gpu_usage)} %`);
  if (system.temperature_celsius) parts.push(`${Math.round(system.temperature_celsius)} °C`);
  if (system.power_watts) parts.push(`${Math.round(system.power_watts)} W`);
  return parts;
}

function condition(node) {
  if (node.gone_seconds !== undefined) return ["bad", `✕ left ${age(node.gone_seconds)} ago`];
  if (node.trouble === "draining") return ["warn", "▽ draining"];
  if (node.trouble) return ["bad", `✕ ${node.trouble}`];
  if (node.is_sparing_memory) return ["warn", "! short of memory"];
  return node.running + node.waiting > 0 ? ["good", "▶ busy"] : ["good", "○ idle"];
}

function fillLinks(card, links) {
  const rank = (link) => (link.busy ? 0 : link.is_slow ? 1 : link.last ? 2 : 3);
  const told = links.filter((link) => links.length <= SHOWN_LINKS + 1 || rank(link) < 3);
  const first = new Set(told.sort((a, b) => rank(a) - rank(b)).slice(0, SHOWN_LINKS + 1));
  const rest = links.filter((link) => !first.has(link));
  const fill = (list, some) => sync(list, some, (link) => link.from, () => stamp("link"), fillLink);
  const [shown, folded] = card.querySelectorAll(".links"), details = card.querySelector("details");
  fill(shown, links.filter((link) => first.has(link)));
  fill(folded, rest);
  details.hidden = rest.length === 0;
  if (rest.length) {
    const rates = rest.map((link) => link.bytes_per_second);
    put(details, "summary", `${first.size ? "other links" : "links"} from ${count(rest.length, "node")}, ${amount(Math.min(...rates), "B/s")} to ${amount(Math.max(...rates), "B/s")}`);
  }
}

function fillLink(line, link) {
  line.className = `link${link.busy ? " busy" : ""}${link.is_slow ? " slow" : ""}`;
  put(line, ".from", `← ${link.from}`);
  put(line, ".rate", `${link.is_slow ? "slow: " : ""}${amount(link.bytes_per_second, "B/s")} · ${duration(link.round_trip_seconds)}`);
  span(line.querySelector(".fill"), 0, link.share);
  const transfer = link.last?.terms.find((pair) => pair.term === "transfer")?.measured_seconds;
  const last = transfer > 0 ? `last ${amount(link.last.kv_bytes, "B")} in ${duration(transfer)}, ${amount(link.last.kv_bytes / transfer, "B/s")}` : "";
  put(line, ".flow", link.busy ? `KV of ${count(link.busy, "request")} on its way` : last);
}

function drawSummary({ requests, nodes }, all) {
  const sum = (field) => nodes.reduce((total, node) => total + node[field], 0);
  const ratios = requests.map((request) => request.terms.find((pair) => pair.term === "total")).map((pair) => pair?.measured_seconds / pair?.estimated_seconds);
  const sorted = ratios.filter((ratio) => ratio > 0 && ratio < Infinity).sort((a, b) => a - b);
  const decoders = nodes.filter((node) => node.role !== "prefill"), pool = decoders.reduce((total, node) => total + node.pool_tokens, 0);
  const used = decoders.reduce((total, node) => total + node.used_share * node.pool_tokens, 0);
  const ready = nodes.filter((node) => !node.trouble).length;
  const placing = requests.filter((request) => request.state === "placing").length;
  const facts = [
    ["nodes ready", `${ready} of ${all.length}`],
    ["running", sum("running")],
    ["waiting", sum("waiting") + placing],
    ["KV in use to decode", pool ? `${Math.round((100 * used) / pool)} %` : "–"],
    ["measured ÷ estimated, median", sorted.length ? sorted[Math.floor(sorted.length / 2)].toFixed(2) : "–"],
  ];
  sync(byId("summary"), facts, ([name]) => name, ([name]) => {
    const fact = document.createElement("div");
    fact.append(document.createElement("dt"), document.createElement("dd"));
    put(fact, "dt", name);
    return fact;
  }, (fact, [, value]) => put(fact, "dd", value));
}

/** Draw a line from each sender to its place in the receiver's list, where the sides are beside each other. */
function drawLines(links) {
  const picture = byId("lines"), box = picture.getBoundingClientRect();
  if (box.width === 0) return;
  const cards = new Map([...document.querySelectorAll(".node")].map((card) => [card.dataset.key, card]));
  const lines = links.flatMap((link) => {
    const card = cards.get(link.from);
    const place = cards.get(link.to)?.querySelector(`.links > [data-key="${CSS.escape(link.from)}"] .from`);
    if (!card?.closest("#senders") || !place?.closest("#receivers")) return [];
    const from = card.getBoundingClientRect(), to = place.getBoundingClientRect();
    if (to.height === 0) return [];
    const x1 = from.right - box.left, x2 = cards.get(link.to).getBoundingClientRect().left - box.left, middle = (x1 + x2) / 2;
    const y1 = from.top + from.height / 2 - box.top, y2 = to.top + to.height / 2 - box.top;
    const width = 1 + 2 * Math.sqrt(link.share) + (link.busy ? 1 : 0);
    const look = { class: `line${link.busy ? " busy" : ""}${link.is_slow ? " slow" : ""}`, "stroke-width": width };
    return [{ key: `${link.from} ${link.to}`, ...look, d: `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` }];
  });
  sync(picture, lines, (line) => line.key, () => svg("path"), (path, { key, ...attributes }) => {
    for (const [name, value] of Object.entries(attributes)) path.setAttribute(name, value);
  });
}
