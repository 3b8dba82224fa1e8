// One request term by term: what was estimated above what was measured, on one scale of time.

import { amount, byId, count, duration, html, put, span, stamp, sync } from "/ui/dom.js";
import { pathOf } from "/ui/requests.js";

const OFF = 1.5, OFF_SHARE = 0.02; // a term stands out that is off by this factor, and by this share of the total
const MEANINGS = {
  queue: "until it is its turn",
  pull: "prefix from another node's cache",
  restore: "cached KV back onto the device",
  prefill: "the prompt's computation",
  transfer: "KV on the link, beside prefill",
  exposed: "transfer that prefill did not hide",
  join: "KV lands, waits for the running step",
  start: "until decoding begins",
  step: "per token",
  decode: "all tokens but the first",
  total: "until the last token",
  imposed: "delay to other requests",
};
const NOT_DRAWN = ["step", "imposed"]; // they are no part of the request's time

/** Draw a request; undefined: none is chosen. */
export function drawWaterfall(request, isZoomed) {
  const terms = request ? termsOf(request) : [];
  byId("waterfall-section").hidden = !request;
  if (request) byId("waterfall-note").textContent = sentence(request);
  byId("terms").hidden = byId("zoom").hidden = terms.length === 0;
  if (terms.length === 0) return;
  const estimated = starts(terms, "estimated_seconds"), measured = starts(terms, "measured_seconds");
  const ends = isZoomed ? [estimated.decode, measured.decode] : terms.filter(isDrawn).flatMap((pair) => [pair.estimated_seconds, pair.measured_seconds]);
  const end = roundUp(Math.max(...ends.map((seconds) => seconds ?? 0), 1e-6));
  const total = terms.find((pair) => pair.term === "total").measured_seconds;
  drawAxis(byId("terms").querySelector(".axis"), end);
  sync(byId("terms").tBodies[0], terms, (pair) => pair.term, () => stamp("term"), (row, pair) => {
    const ratio = pair.estimated_seconds > 0 && pair.measured_seconds > 0 ? pair.measured_seconds / pair.estimated_seconds : null;
    row.className = `${pair.term}${isOff(pair, ratio, total) ? " off" : ""}`;
    put(row, ".term", pair.term);
    put(row, ".meaning", MEANINGS[pair.term] ?? "");
    put(row, ".estimated", duration(pair.estimated_seconds));
    put(row, ".measured", pair.is_so_far ? `${duration(pair.measured_seconds)} so far` : duration(pair.measured_seconds));
    put(row, ".ratio", ratio === null || pair.is_so_far ? "" : `× ${ratio.toFixed(2)}`);
    const [above, below] = row.querySelectorAll(".bar");
    drawBar(above, isDrawn(pair) ? estimated[pair.term] : null, pair.estimated_seconds, end);
    drawBar(below, isDrawn(pair) ? measured[pair.term] : null, pair.measured_seconds, end);
  });
}

const isOff = (pair, ratio, total) =>
  ratio !== null && (ratio > OFF || ratio < 1 / OFF) && Math.abs(pair.measured_seconds - pair.estimated_seconds) > OFF_SHARE * total;

const isDrawn = (pair) => !NOT_DRAWN.includes(pair.term);

/** Return the terms; of a request that runs, its time so far stands for the measured total. */
function termsOf({ terms, state, seconds }) {
  const isRunning = state === "prefilling" || state === "decoding";
  return terms.map((pair) => (isRunning && pair.term === "total" ? { ...pair, measured_seconds: seconds, is_so_far: true } : pair));
}

/** Return when each term begins. A transfer ends when the last KV is there: what is not exposed ran beside the prefill. */
function starts(terms, column) {
  const of = Object.fromEntries(terms.map((pair) => [pair.term, pair[column] ?? 0]));
  const { queue = 0, pull = 0, restore = 0, prefill = 0, transfer = 0, exposed = 0, join = 0 } = of;
  const computed = queue + pull + restore + prefill, here = computed + exposed;
  const decode = Math.max(of.start ?? 0, here + join);
  return { queue: 0, pull: queue, restore: queue + pull, prefill: queue + pull + restore, transfer: Math.max(0, here - transfer), exposed: computed, join: here, start: 0, decode, total: 0 };
}

function drawBar(bar, start, seconds, end) {
  bar.hidden = start === null || !(seconds > 0) || start >= end;
  if (!bar.hidden) span(bar, start / end, Math.min(seconds, end - start) / end);
  bar.classList.toggle("cut", !bar.hidden && start + seconds > end * (1 + 1e-9));
}

function drawAxis(axis, end) {
  if (axis.dataset.end === String(end)) return;
  axis.dataset.end = end;
  const marks = [0, 0.5, 1].map((share) => html("span", { text: duration(end * share) }));
  marks.forEach((mark, index) => (mark.style.left = `${50 * index}%`));
  axis.replaceChildren(...marks);
}

/** Return the next number with a round half. */
function roundUp(seconds) {
  const power = 10 ** Math.floor(Math.log10(seconds));
  return [1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10].find((step) => step * power >= seconds * (1 - 1e-9)) * power;
}

function sentence(request) {
  const of = Object.fromEntries(request.terms.map((pair) => [pair.term, pair.measured_seconds]));
  if (request.error) return `The request ${request.state === "failed" ? "failed" : "was cancelled"} after ${duration(request.seconds)}: ${request.error}.`;
  const parts = [`${count(request.prompt_tokens, "prompt token")} by ${pathOf(request)}`];
  if (request.kv_bytes > 0 && of.transfer > 0) {
    const hidden = Math.max(0, 1 - (of.exposed ?? 0) / of.transfer);
    parts.push(`${amount(request.kv_bytes, "B")} of KV in ${duration(of.transfer)} (${amount(request.kv_bytes / of.transfer, "B/s")}), ${Math.round(100 * hidden)} % hidden`);
  }
  if (request.pulled_tokens > 0) parts.push(`${count(request.pulled_tokens, "token")} from the cache of ${request.pull_node}`);
  if (request.fallback_reason) parts.push(`the remote prefill was given up: ${request.fallback_reason}`);
  if (request.preemptions > 0) parts.push(`preempted ${count(request.preemptions, "time")} for want of memory`);
  if (request.state === "done") parts.push(`the client saw its first token after ${duration(request.first_token_seconds)}, the last after ${duration(request.seconds)}`);
  else parts.push(`the request is ${request.state}, for ${duration(request.seconds)} now`);
  return `${parts.join("; ")}.`;
}
