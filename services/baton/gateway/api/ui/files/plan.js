// The plan and why: who holds what, and what every placement of a request would cost now, term by term.

import { byId, duration, html, sync } from "/ui/dom.js";

// Columns as `baton plan` has them, with the terms that each adds up.
const TERMS = {
  queue: ["queue"], prefill: ["prefill"], transfer: ["transfer"], exposed: ["exposed", "pull", "restore"], TTFT: ["time_to_first_token"],
  start: ["start"], step: ["step"], decode: ["decode"], imposed: ["imposed"], total: ["total"],
};

/** Let a person have a request priced; `ask` returns a document. Returns what draws the plan. */
export function startPlan(ask, model) {
  const note = byId("plan-note"), table = byId("placements");

  byId("price").addEventListener("submit", async (event) => {
    event.preventDefault();
    const query = new URLSearchParams({ model_id: model(), prompt_tokens: byId("prompt-tokens").value, max_tokens: byId("new-tokens").value });
    try {
      const { previews } = await ask(`/instance/previews?${query}`);
      table.hidden = previews.length === 0;
      table.tHead.rows[0].replaceChildren(...["decode", "prefill", ...Object.keys(TERMS), "choice / reason"].map((text) => html("th", { text, scope: "col" })));
      table.tBodies[0].replaceChildren(...previews.map((preview, index) => html("tr", {}, ...cells(preview, index, previews[0]))));
      note.textContent = previews.length
        ? `${model()}: ${query.get("prompt_tokens")} prompt tokens, nothing of them cached, at most ${query.get("max_tokens")} new ones. The first is what the router would take. Total = start + decode + imposed.`
        : `No node can take such a request for ${model()} now.`;
    } catch (error) {
      table.hidden = true;
      note.textContent = error.message;
    }
  });

  return ({ planner }) => {
    const lines = planner ? planner.plan ?? [] : ["No router that plans answers now."];
    sync(byId("plan"), lines.map((text, index) => ({ text, key: String(index) })), (line) => line.key, () => html("li"), (item, { text }) => {
      if (item.textContent !== text) item.textContent = text;
    });
  };
}

function cells({ nodes, estimate, error }, index, best) {
  const dearer = estimate.total_seconds - best.estimate.total_seconds;
  const choice = error ?? (index ? `${dearer < 0 ? "−" : "+"}${duration(Math.abs(dearer))}` : "chosen");
  const times = Object.entries(TERMS).map(([heading, terms]) => [heading, error ? "–" : duration(terms.reduce((sum, term) => sum + estimate[`${term}_seconds`], 0))]);
  const texts = [["decode", nodes.at(-1)], ["prefill", nodes.length > 1 ? nodes[0] : "local"], ...times, ["", choice]];
  return texts.map(([heading, text]) => html("td", { text, "data-heading": heading }));
}
