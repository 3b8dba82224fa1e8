// Codex CLI: mends a program by its tools, with its own prompts, over /v1/responses.

import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { QUESTION, agentFeatures, output, settingsFolder } from "./agent.mjs";
import { MODEL, URL_, run } from "./features.mjs";

async function work() {
  const home = settingsFolder("codex");
  writeFileSync(
    join(home, "config.toml"),
    `model = "${MODEL}"\nmodel_provider = "baton"\nmodel_context_window = 32768\n` +
      `[model_providers.baton]\nname = "Baton"\nbase_url = "${URL_}/v1"\nwire_api = "responses"\n`,
  );
  const program = join(import.meta.dirname, "node_modules", ".bin", "codex");
  const args = ["exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", QUESTION];
  const lines = (await output(program, args, { CODEX_HOME: home })).split("\n").filter((line) => line.startsWith("{"));
  const items = lines.map((line) => JSON.parse(line)).filter((event) => event.type === "item.completed");
  return items.at(-1).item.text;
}

await run(agentFeatures(work));
