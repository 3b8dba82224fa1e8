// Models and machines: how far each model is, on which machine, and what a person may have done about it.

import { amount, byId, html, put, span, stamp, sync } from "/ui/dom.js";

const WORDS = { loaded: "loading", serving: "● serving", failed: "✕ failed", draining: "▽ draining" };
const KINDS = { serving: "good", failed: "bad" };
const stageOf = (stage) => (stage ?? "absent").replace("MODEL_STAGE_", "").toLowerCase();
const bytes = (value) => amount(Number(value ?? 0), "B");

/** Let a person change models; `post` sends a document and returns the answer's. Returns what draws the state. */
export function startModels(post) {
  let agreed = null;
  const note = byId("models-note"), forecast = byId("forecast"), source = byId("source");

  /** Say what a change would come to, and wait for a word. */
  async function ask(verb, label, body) {
    note.textContent = `Asking what it would come to to ${verb} ${body.model} …`;
    try {
      const answer = await post(`/v1/models/${verb}`, { ...body, dry_run: true });
      agreed = [verb, body];
      forecast.querySelector("ul").replaceChildren(...answer.forecast.map((text) => html("li", { text })));
      byId("agree").textContent = label;
      note.textContent = "";
      forecast.hidden = false;
      byId("agree").focus();
    } catch (error) {
      note.textContent = error.message;
      forecast.hidden = true;
    }
  }

  byId("agree").addEventListener("click", async () => {
    forecast.hidden = true;
    const [verb, body] = agreed, label = byId("agree").textContent;
    try {
      const answer = await post(`/v1/models/${verb}`, body);
      note.textContent = `${label}: asked for.${answer.cause ? ` ${answer.cause}` : ""}`;
      source.value = "";
    } catch (error) {
      note.textContent = error.message;
    }
  });
  byId("decline").addEventListener("click", () => { forecast.hidden = true; });
  byId("add").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = source.value.trim(), isPull = event.submitter?.id === "pull";
    if (!text) return;
    const parts = text.split("@")[0].split("/").filter(Boolean), isHub = !/^[/~.]/.test(text) && parts.length === 2;
    const model = isHub ? parts.join("/") : parts.at(-1) ?? text, known = text.includes("/") ? { source: text } : {};
    ask("load", isPull ? `Pull ${model}` : `Load ${model}`, { model, ...known, on_demand: isPull });
  });

  return ({ models, planner }) => {
    const planned = planner?.models ?? [], names = new Set(planned.map((each) => each.desired.name));
    const rest = models.filter((each) => !names.has(each.name));
    const rows = [...planned, ...rest.map((each) => ({ desired: { name: each.name }, stage: each.state, problem: each.cause, root: each.root }))];
    const inWork = new Map(models.map((each) => [each.name, each.requests ? `${each.requests} of at most ${each.max_requests} in work` : ""]));
    sync(byId("models"), rows, (row) => row.desired.name, () => stamp("model-card"), (item, row) => fillModel(item, { ...row, requests: inWork.get(row.desired.name) }, ask));
    const free = Object.entries(planner?.machine_free_byte_counts ?? {}).sort();
    byId("machines-title").hidden = free.length === 0;
    sync(byId("machines"), free, ([name]) => name, () => html("li"), (item, [name, left]) => {
      const held = planned.filter((row) => row.machines?.[name]).map((row) => machineOf(row.desired.name, row.machines[name]));
      const text = [`${name}: ${bytes(left)} free for models`, ...held].join(" · ");
      if (item.textContent !== text) item.textContent = text;
    });
  };
}

function machineOf(model, { stage, held_byte_count: held, weight_byte_count: weights, problem }) {
  const size = Number(held ?? 0) ? `, holds ${bytes(held)}` : Number(weights ?? 0) ? `, ${bytes(weights)} of weights` : "";
  return `${model} ${WORDS[stageOf(stage)] ?? stageOf(stage)}${size}${problem ? ` (${problem})` : ""}`;
}

function fillModel(item, { desired, machines = {}, problem, ready_in: ready, root, requests, serving_count: serving, ...row }, ask) {
  const stage = stageOf(row.stage), isWanted = Boolean(desired.source) && !desired.is_unloaded, all = Object.values(machines);
  const total = all.reduce((sum, each) => sum + Number(each.total_byte_count ?? 0), 0), done = all.reduce((sum, each) => sum + Number(each.done_byte_count ?? 0), 0);
  const isMoving = (stage === "fetching" || stage === "loaded") && done < total; // what a worker needs beside weights counts, too
  item.className = `model ${KINDS[stage] ?? "warn"}`;
  put(item, ".name", desired.name);
  put(item, ".badge", `${WORDS[stage] ?? stage}${isMoving ? ` ${Math.round((100 * done) / total)} %` : ""}`);
  item.querySelector(".track").hidden = !isMoving;
  span(item.querySelector(".fill"), 0, isMoving ? done / total : 0);
  const seconds = ready && !problem && stage !== "stored" ? `serves in about ${Math.ceil(parseFloat(ready))} s` : "";
  const demand = desired.is_on_demand && isWanted ? `on demand: a request loads it, it goes after ${parseFloat(desired.keep_alive ?? "0s") || 300} s without any` : "";
  const kind = desired.source ? desired.source : root && root !== desired.name ? `answered by ${root}` : "by workers that were started by hand or by baton up";
  put(item, ".what", [serving ? `${serving} ${serving === 1 ? "worker takes" : "workers take"} requests` : "", requests, kind, desired.is_unloaded ? "unloaded" : demand, seconds].filter(Boolean).join(" · "));
  put(item, ".problem", problem ?? "");
  const [load, unload] = item.querySelectorAll("button"), again = {
    model: desired.name,
    min_replicas: desired.min_replica_count ?? 1,
    max_replicas: desired.max_replica_count ?? 0,
    machines: desired.pinned_machines ?? [],
    excluded_machines: desired.excluded_machines ?? [],
    keep_alive_seconds: parseFloat(desired.keep_alive ?? "0s"),
  };
  load.hidden = !desired.source || (isWanted && !desired.is_on_demand && stage !== "failed");
  load.textContent = stage === "failed" ? "Try again" : "Load";
  load.onclick = () => ask("load", `Load ${desired.name}`, again);
  unload.hidden = !desired.source;
  unload.textContent = isWanted && stage !== "failed" ? "Unload" : "Forget";
  unload.onclick = () => ask("unload", `${unload.textContent} ${desired.name}`, { model: desired.name, forget: unload.textContent === "Forget" });
}
