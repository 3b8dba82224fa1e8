// Claude Code: mends a program by its tools, with its own prompts, over /v1/messages.

import { execFileSync } from "node:child_process";
import { join } from "node:path";
import { QUESTION, agentFeatures, output, settingsFolder } from "./agent.mjs";
import { KEY, MODEL, URL_, run } from "./features.mjs";

const MODULES = join(import.meta.dirname, "node_modules");

async function work() {
  // What npm may not run by itself: the package's own step that puts its program in place.
  execFileSync("node", [join(MODULES, "@anthropic-ai", "claude-code", "install.cjs")]);
  const environment = {
    ANTHROPIC_BASE_URL: URL_,
    ANTHROPIC_API_KEY: KEY,
    ANTHROPIC_MODEL: MODEL,
    ANTHROPIC_SMALL_FAST_MODEL: MODEL,
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
    CLAUDE_CONFIG_DIR: settingsFolder("claude"),
    DISABLE_AUTOUPDATER: "1",
    IS_SANDBOX: "1",
  };
  const args = ["-p", QUESTION, "--output-format", "json", "--dangerously-skip-permissions"];
  return JSON.parse(await output(join(MODULES, ".bin", "claude"), args, environment)).result;
}

await run(agentFeatures(work));
