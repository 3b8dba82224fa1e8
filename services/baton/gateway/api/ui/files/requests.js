// The table of requests; a row that is chosen stays chosen while the table is filled again.

import { duration, html } from "/ui/dom.js";

/** Fill the table; `choose` is called with the name of a request. */
export function fillRequests(table, requests, chosen, choose) {
  const focused = document.activeElement?.dataset?.name;
  table.tBodies[0].replaceChildren(...requests.map((request) => row(request, chosen, choose)));
  if (focused) table.querySelector(`tr[data-name="${CSS.escape(focused)}"]`)?.focus();
}

function row(request, chosen, choose) {
  const kind = `${request.state}${request.name === chosen ? " chosen" : ""}`;
  const line = html(
    "tr",
    { class: kind, tabindex: "0", "data-name": request.name, title: request.error || request.name },
    html("td", { text: new Date(request.began_at * 1000).toLocaleTimeString() }),
    html("td", { class: "state", text: request.error || request.fallback_reason || request.state }),
    html("td", { text: request.prefill_node }),
    html("td", { text: request.decode_node }),
    number(request.prompt_tokens),
    number(request.cached_tokens ?? ""),
    number(request.output_tokens),
    number(duration(request.first_token_seconds)),
    number(duration(request.seconds)),
  );
  line.addEventListener("click", () => choose(request.name));
  line.addEventListener("keydown", (event) => event.key === "Enter" && choose(request.name));
  return line;
}

const number = (text) => html("td", { class: "number", text: String(text) });
