// The cluster as a picture: prefill nodes on the left, decode nodes on the right, links between them.

import { amount, duration, svg } from "/ui/dom.js";

const WIDTH = 760, BOX_WIDTH = 250, BOX_HEIGHT = 92, GAP = 18, MARGIN = 6, LABEL_AT = 0.32;

/** Draw nodes and links; a link is busy where a request that is being prefilled uses it. */
export function drawCluster(picture, state) {
  const prefills = state.nodes.filter((node) => node.role === "prefill");
  const decodes = state.nodes.filter((node) => node.role !== "prefill");
  const rows = Math.max(prefills.length, decodes.length, 1);
  const height = rows * (BOX_HEIGHT + GAP) - GAP + 2 * MARGIN;
  picture.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
  const places = new Map([...column(prefills, MARGIN, height), ...column(decodes, WIDTH - BOX_WIDTH - MARGIN, height)]);
  const busy = new Set(
    state.requests
      .filter((request) => request.state === "prefilling" && request.prefill_node !== request.decode_node)
      .map((request) => `${request.prefill_node} ${request.decode_node}`),
  );
  picture.replaceChildren(
    ...state.links.flatMap((link) => drawLink(link, places, busy)),
    ...state.nodes.map((node) => drawNode(node, places.get(node.id))),
  );
  if (state.nodes.length === 0) {
    picture.append(svg("text", { x: WIDTH / 2, y: height / 2, "text-anchor": "middle", text: "No node is registered." }));
  }
}

function column(nodes, x, height) {
  const top = (height - nodes.length * (BOX_HEIGHT + GAP) + GAP) / 2;
  return nodes.map((node, index) => [node.id, { x, y: top + index * (BOX_HEIGHT + GAP) }]);
}

function drawLink(link, places, busy) {
  const from = places.get(link.from), to = places.get(link.to);
  if (!from || !to) return [];
  const x1 = from.x + BOX_WIDTH, x2 = to.x, middle = (x1 + x2) / 2;
  const y1 = from.y + BOX_HEIGHT / 2, y2 = to.y + BOX_HEIGHT / 2;
  const kind = busy.has(`${link.from} ${link.to}`) ? "link busy" : "link";
  const t = LABEL_AT, bend = 3 * t * t - 2 * t * t * t; // a point of the curve before links cross
  const labelX = x1 * (1 - t) ** 3 + middle * 3 * t * (1 - t) + x2 * t ** 3;
  const label = `${amount(link.bytes_per_second, "B/s")} · ${duration(link.round_trip_seconds)}`;
  return [
    svg("path", { class: kind, d: `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` }),
    svg("text", { class: "dim", x: labelX, y: y1 + (y2 - y1) * bend - 5, "text-anchor": "middle", text: label }),
  ];
}

function drawNode(node, { x, y }) {
  const used = node.block_count ? 1 - (node.free_block_count || 0) / node.block_count : 0;
  const power = node.system.power_watts ? ` · ${Math.round(node.system.power_watts)} W` : "";
  const load = `${node.running || 0} running · ${node.waiting || 0} waiting${node.is_draining ? " · draining" : ""}${power}`;
  const kind = node.is_draining ? "node draining" : "node";
  return svg(
    "g",
    { transform: `translate(${x} ${y})`, "data-node": node.id },
    svg("rect", { class: kind, width: BOX_WIDTH, height: BOX_HEIGHT, rx: 8 }),
    svg("text", { x: 12, y: 21, "font-weight": 600, text: node.id }),
    svg("text", { x: BOX_WIDTH - 12, y: 21, "text-anchor": "end", class: "dim", text: node.role }),
    svg("text", { x: 12, y: 39, class: "dim", text: clip(`${node.engine} · ${node.device}`, 38) }),
    svg("text", { x: 12, y: 57, class: "dim", text: load }),
    svg("text", { x: 12, y: 78, class: "dim", text: "KV" }),
    svg("rect", { class: "track", x: 34, y: 70, width: BOX_WIDTH - 90, height: 8, rx: 4 }),
    svg("rect", { class: "bar decode", x: 34, y: 70, width: (BOX_WIDTH - 90) * used, height: 8, rx: 4 }),
    svg("text", { x: BOX_WIDTH - 12, y: 78, "text-anchor": "end", class: "dim", text: `${Math.round(100 * used)} %` }),
    svg("title", { text: profile(node) }),
  );
}

function profile(node) {
  return Object.entries(node.profile)
    .filter(([, value]) => typeof value === "number" && value > 0)
    .map(([name, value]) => `${name.replaceAll("_", " ")}: ${value < 1 ? value.toPrecision(3) : amount(value, "")}`)
    .join("\n");
}

const clip = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);
