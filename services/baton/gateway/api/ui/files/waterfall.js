// One request in time: what was estimated, what was measured, and below it every KV frame, computed and on its way.

import { amount, byId, duration, html, svg } from "/ui/dom.js";

const WIDTH = 1200, LABEL = 130, ROW = 20, FRAMES_HEIGHT = 420, MIN_ROW = 2;

/** Draw a request; undefined: none is chosen. */
export function drawWaterfall(picture, request) {
  byId("waterfall-note").textContent = request ? sentence(request) : "Choose a request.";
  byId("terms").hidden = !request?.terms.length;
  byId("terms").tBodies[0].replaceChildren(...(request?.terms ?? []).map(termRow));
  if (!request) {
    picture.replaceChildren();
    return;
  }
  const estimated = stages(request, "estimated_seconds"), measured = stages(request, "measured_seconds");
  const frames = timedFrames(request);
  const whole = scaleOf(Math.max(total(estimated), total(measured)));
  const near = scaleOf(Math.max(...frames.map((frame) => Math.max(frame.ready, frame.arrived)), 0));
  const rowHeight = Math.max(MIN_ROW, Math.min(ROW, FRAMES_HEIGHT / Math.max(1, frames.length)));
  const top = 3 * ROW + 34, height = frames.length ? top + frames.length * rowHeight + 8 : 3 * ROW + 6;
  picture.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
  picture.replaceChildren(
    ...axis(whole, 12, 3 * ROW),
    ...bars("estimated", estimated, ROW, whole.factor, "estimate"),
    ...bars("measured", measured, 2 * ROW, whole.factor, ""),
    ...(frames.length ? axis(near, top - 10, height) : []),
    ...frames.flatMap((frame, index) => drawFrame(frame, top + index * rowHeight, rowHeight, near.factor)),
  );
}

/** Return a row of the table: a term as it was estimated and as it was measured. */
function termRow({ term, estimated_seconds: estimated, measured_seconds: measured }) {
  const ratio = estimated > 0 && measured > 0 ? measured / estimated : null;
  const cells = [duration(estimated), duration(measured), ratio === null ? "" : ratio.toFixed(2)];
  return html(
    "tr",
    { class: ratio !== null && (ratio > 1.5 || ratio < 0.67) ? "off" : "" },
    html("td", { text: term }),
    ...cells.map((text) => html("td", { class: "number", text })),
  );
}

/** Return what maps seconds up to `end` to the width of the picture. */
function scaleOf(end) {
  const seconds = Math.max(end, 1e-6);
  return { end: seconds, factor: (WIDTH - LABEL - 30) / seconds };
}

function sentence(request) {
  const { measured, timeline } = request;
  if (!measured) return request.error || `The request is ${request.state}.`;
  const parts = [`${request.prompt_tokens} prompt tokens on ${request.prefill_node}, decoded on ${request.decode_node}`];
  if (request.pull_node) {
    const pulled = `${request.pulled_tokens} of them from the cache of ${request.pull_node}`;
    parts.push(`${pulled}, ${amount(request.kv_bytes, "B")} in ${duration(measured.pull)}`);
  } else if (request.kv_bytes > 0) {
    const hidden = measured.transfer > 0 ? Math.max(0, 1 - measured.exposed / measured.transfer) : 1;
    parts.push(`${amount(request.kv_bytes, "B")} of KV in ${duration(measured.transfer)}, ${Math.round(100 * hidden)} % hidden`);
    if (!timeline) parts.push("frames are timed for requests that begin while this page is open");
  }
  if (request.fallback_reason) parts.push(`the remote prefill was given up: ${request.fallback_reason}`);
  return `${parts.join("; ")}.`;
}

/** Return the stages of one column of the table, one after the other: both bars are of as many tokens. */
function stages(request, column) {
  const of = Object.fromEntries(request.terms.map((pair) => [pair.term, pair[column] || 0]));
  const kinds = [["queue", of.queue], ["pull", (of.pull || 0) + (of.restore || 0)], ["compute", of.prefill], ["exposed", (of.exposed || 0) + (of.join || 0)], ["decode", of.decode]];
  let start = 0;
  return kinds.map(([kind, seconds = 0]) => {
    const stage = { kind, start, seconds };
    start += seconds;
    return stage;
  });
}

const total = (list) => list.reduce((sum, stage) => sum + stage.seconds, 0);

/** Return each frame with the intervals in which it was computed and on its way, hidden and exposed. */
function timedFrames(request) {
  if (!request.timeline) return [];
  const { computed, frames } = request.timeline;
  let lastReady = request.measured?.queue || 0, lastArrived = 0;
  return frames.map(([layer, layers, token, tokens, bytes, ready, arrived]) => {
    const begun = Math.max(ready, lastArrived);
    const frame = { layer, layers, token, tokens, bytes, ready, arrived, begun, computing: Math.min(lastReady, ready) };
    frame.shown = computed > 0 ? Math.min(Math.max(begun, computed), arrived) : arrived;
    lastReady = Math.max(lastReady, ready);
    lastArrived = Math.max(lastArrived, arrived);
    return frame;
  });
}

function axis({ end, factor }, y, bottom) {
  const power = 10 ** Math.floor(Math.log10(end));
  const step = end / power < 2 ? power / 4 : end / power < 5 ? power / 2 : power;
  const marks = [];
  for (let index = 0; index * step <= end; index += 1) {
    const x = LABEL + index * step * factor;
    marks.push(svg("line", { class: "axis", x1: x, x2: x, y1: y + 4, y2: bottom }));
    marks.push(svg("text", { class: "dim", x, y, "text-anchor": "middle", text: index === 0 ? "0" : duration(index * step) }));
  }
  return marks;
}

function bars(label, list, y, scale, kind) {
  return [
    svg("text", { x: LABEL - 10, y: y + 14, "text-anchor": "end", class: "dim", text: list.length ? label : "" }),
    ...list.map((stage) => bar(stage.start, stage.start + stage.seconds, y + 2, ROW - 5, scale, `${stage.kind} ${kind}`)),
  ];
}

function bar(start, end, y, height, scale, kind, title = "") {
  const box = { class: `bar ${kind}`, x: LABEL + start * scale, y, width: Math.max(0, (end - start) * scale), height };
  return svg("rect", box, svg("title", { text: title || `${kind.split(" ")[0]} ${duration(end - start)}` }));
}

function drawFrame(frame, y, height, scale) {
  const layers = frame.layers > 1 ? `layers ${frame.layer}–${frame.layer + frame.layers - 1}` : `layer ${frame.layer}`;
  const name = `${layers}, positions ${frame.token}–${frame.token + frame.tokens - 1}, ${amount(frame.bytes, "B")}`;
  const half = Math.max(1, (height - 1) / 2);
  const marks = [
    bar(frame.computing, frame.ready, y, half, scale, "compute", `${name}: computed ${duration(frame.ready - frame.computing)}`),
    bar(frame.begun, frame.shown, y + half, half, scale, "transfer", `${name}: ${duration(frame.arrived - frame.begun)} on its way`),
    bar(frame.shown, frame.arrived, y + half, half, scale, "exposed", `${name}: ${duration(frame.arrived - frame.shown)} exposed`),
  ];
  if (height >= 10) {
    marks.push(svg("text", { x: LABEL - 10, y: y + height - 3, "text-anchor": "end", class: "dim", "font-size": 10, text: layers }));
  }
  return marks;
}
