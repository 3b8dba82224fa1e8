// The table of requests: one row is chosen, by a click or by arrow keys, and stays chosen while the table is filled again.

import { count, duration, put, stamp, sync } from "/ui/dom.js";

const STEPS = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -Infinity, End: Infinity };

/** Fill the table; `choose` is called with the name of a request. */
export function fillRequests(table, requests, chosen, choose) {
  table.hidden = requests.length === 0;
  sync(table.tBodies[0], requests, (request) => request.name, (request) => makeRow(request, choose), (row, request) => {
    const total = request.terms.find((pair) => pair.term === "total");
    const isChosen = request.name === chosen;
    row.className = `${request.state}${isChosen ? " chosen" : ""}`;
    row.tabIndex = isChosen ? 0 : -1;
    row.setAttribute("aria-selected", isChosen);
    put(row, ".state", stateOf(request));
    put(row, ".path", pathOf(request));
    put(row, ".cached", request.cached_tokens ?? "");
    put(row, ".output", request.output_tokens.toLocaleString("en"));
    put(row, ".first", duration(request.first_token_seconds));
    put(row, ".estimated", duration(total?.estimated_seconds));
    put(row, ".took", duration(request.seconds));
  });
}

/** Let keys move the choice from the row that has the focus. */
export function watchKeys(table, choose) {
  table.addEventListener("keydown", (event) => {
    const rows = [...table.tBodies[0].rows], at = rows.indexOf(document.activeElement);
    if (!(event.key in STEPS) || at < 0) return;
    event.preventDefault();
    const row = rows[Math.min(Math.max(at + STEPS[event.key], 0), rows.length - 1)];
    choose(row.dataset.key);
    row.focus();
  });
}

function makeRow(request, choose) {
  const row = stamp("request");
  row.addEventListener("click", () => choose(request.name));
  put(row, ".began", new Date(request.began_at * 1000).toLocaleTimeString());
  put(row, ".prompt", request.prompt_tokens.toLocaleString("en"));
  return row;
}

function stateOf(request) {
  if (request.error) return `${request.state}: ${request.error}`;
  return request.fallback_reason ? `${request.state}, prefilled locally: ${request.fallback_reason}` : request.state;
}

/** Return over which nodes a request goes. */
export function pathOf({ prefill_node: prefill, decode_node: decode, pull_node: pull }) {
  if (!decode) return "not placed yet";
  if (pull) return `cache of ${pull} → ${decode}`;
  return prefill === decode ? decode : `${prefill} → ${decode}`;
}
