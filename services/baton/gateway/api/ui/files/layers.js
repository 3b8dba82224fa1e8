// The KV of one request, frame by frame: when its layers were computed, and when they were on their way.

import { amount, byId, count, duration, svg } from "/ui/dom.js";

const ROW = 20, MIN_ROW = 3, MAX_HEIGHT = 440, TOP = 22, LABEL = 78, MARK_WIDTH = 90, TEXT_HEIGHT = 15;

/** Draw the frames of a request, if `timeline` is its. */
export function drawLayers(request, timeline) {
  const place = byId("layers");
  place.hidden = !request || timeline?.name !== request.name || timeline.frames.length === 0;
  const picture = byId("frames"), width = place.clientWidth;
  if (place.hidden || width === 0) return;
  const frames = timedFrames(timeline);
  const end = Math.max(...frames.map((frame) => Math.max(frame.ready, frame.arrived)), 1e-6);
  const rowHeight = Math.max(MIN_ROW, Math.min(ROW, MAX_HEIGHT / frames.length));
  const height = TOP + frames.length * rowHeight + 2, factor = (width - LABEL - 24) / end;
  const labelled = Math.ceil(TEXT_HEIGHT / rowHeight);
  byId("layers-note").textContent = sentence(frames, timeline.computed);
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  picture.setAttribute("height", height);
  picture.replaceChildren(
    ...axis(end, factor, height, Math.max(2, Math.floor((width - LABEL) / MARK_WIDTH))),
    ...frames.flatMap((frame, index) => drawFrame(frame, TOP + index * rowHeight, rowHeight, factor, index % labelled === 0)),
  );
}

/** Return each frame with the intervals in which it was computed and on its way, hidden and exposed. */
function timedFrames({ computed, frames }) {
  let lastReady = 0, lastArrived = 0;
  return frames.map(([layer, layers, token, tokens, bytes, ready, arrived]) => {
    const begun = Math.min(Math.max(ready, lastArrived), arrived);
    const frame = { layer, layers, token, tokens, bytes, ready, arrived, begun, computing: Math.min(lastReady, ready) };
    frame.shown = computed > 0 ? Math.min(Math.max(begun, computed), arrived) : arrived;
    lastReady = Math.max(lastReady, ready);
    lastArrived = Math.max(lastArrived, arrived);
    return frame;
  });
}

function sentence(frames, computed) {
  const arrived = Math.max(...frames.map((frame) => frame.arrived));
  const bytes = frames.reduce((sum, frame) => sum + frame.bytes, 0);
  const known = computed > 0 ? `all computed after ${duration(computed)}, ` : "";
  return `${count(frames.length, "frame")}, ${amount(bytes, "B")}: ${known}all here after ${duration(arrived)}, since the decode node called for them.`;
}

function axis(end, factor, height, marks) {
  const power = 10 ** Math.floor(Math.log10(end / marks));
  const step = power * ([1, 2, 2.5, 5, 10].find((each) => each * power >= end / marks) ?? 10);
  return Array.from({ length: Math.floor(end / step) + 1 }, (_, index) => index * step).flatMap((seconds) => {
    const x = LABEL + seconds * factor;
    const mark = svg("text", { class: "dim", x, y: 12, "text-anchor": "middle", text: duration(seconds) });
    return [svg("line", { class: "axis", x1: x, x2: x, y1: 16, y2: height }), mark];
  });
}

function drawFrame(frame, y, height, factor, isLabelled) {
  const { layer, layers, token, tokens, bytes, ready, arrived, begun, computing, shown } = frame;
  const short = layers > 1 ? `${layer}–${layer + layers - 1}` : `${layer}`;
  const name = `layer ${short}, positions ${token}–${token + tokens - 1}, ${amount(bytes, "B")}`;
  const half = Math.max(1.5, height / 2 - 1);
  const bar = (kind, start, end, top, text) =>
    svg("rect", { class: `bar ${kind}`, x: LABEL + start * factor, y: top, width: Math.max(0, (end - start) * factor), height: half }, svg("title", { text }));
  const bars = [
    bar("prefill", computing, ready, y, `${name}: computed in ${duration(ready - computing)}`),
    bar("transfer", begun, shown, y + half, `${name}: ${duration(arrived - begun)} on its way`),
    bar("exposed", shown, arrived, y + half, `${name}: ${duration(arrived - shown)} of it exposed`),
  ];
  if (isLabelled) bars.push(svg("text", { x: LABEL - 8, y: y + Math.max(height / 2, 6) + 4, "text-anchor": "end", class: "dim", text: `layer ${short}` }));
  return bars;
}
