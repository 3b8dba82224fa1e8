// Frame of an agent's script: lets it mend a program in a folder of its own, once, and looks at what it did.

import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { URL_, cachedShare, expect, expectTrue } from "./features.mjs";

export const QUESTION =
  "calc.py has a bug, its test test_calc.py fails. Please read calc.py, mend the bug, run the test and tell me in one sentence what you did.";
const LIMIT_MS = 240_000;
// The model knows this folder: it was made for these agents (tests/clients/agents.py).
const FOLDER = dirname(process.env.BATON_MODEL_DIR);
export const WORKSPACE = join(FOLDER, "workspace");
const MENDED = "def add(a, b):\n    return a + b\n";

// Makes the folder of an agent's own settings anew.
export function settingsFolder(name) {
  const folder = join(FOLDER, name);
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  return folder;
}

// Features of an agent: `work` starts it in the workspace and returns its last words; it is run once.
export function agentFeatures(work) {
  let done;
  const once = () => (done ??= watched(work));
  return {
    loop: async () => {
      const { words, requests } = await once();
      expect(readFileSync(join(WORKSPACE, "calc.py"), "utf8"), MENDED, "calc.py");
      execFileSync("python3", ["test_calc.py"], { cwd: WORKSPACE });
      expect(words, "I mended add in calc.py, which subtracted, and its test passes.", "last words");
      expect(requests.length, 4, "requests: read, edit, test, answer");
    },
    stream: async () => {
      for (const request of (await once()).requests) {
        expect([request.state, request.error], ["done", ""], "state of a request");
        expectTrue(request.first_token_seconds < request.seconds, "a token before the end");
      }
    },
    prompt: async () => {
      const first = (await once()).requests[0].prompt_tokens;
      expectTrue(first > 5000, `the agent's own prompt, unabridged: ${first} tokens`);
      return `${first} tokens`;
    },
    cached: async () => {
      const [, ...later] = (await once()).requests;
      const shares = later.map((request) => cachedShare(request.cached_tokens, request.prompt_tokens));
      return shares.join(", ");
    },
  };
}

export async function output(program, args, environment) {
  const child = spawn(program, args, {
    cwd: WORKSPACE,
    env: { ...process.env, ...environment },
    stdio: ["ignore", "pipe", "pipe"],
    timeout: LIMIT_MS,
  });
  let [text, problems] = ["", ""];
  child.stdout.on("data", (data) => (text += data));
  child.stderr.on("data", (data) => (problems += data));
  const status = await new Promise((resolve, reject) => child.on("close", resolve).on("error", reject));
  expectTrue(status === 0, `exit status ${status}: ${text.slice(-300)} ${problems.slice(-300)}`);
  return text;
}

async function watched(work) {
  rmSync(WORKSPACE, { recursive: true, force: true });
  mkdirSync(WORKSPACE, { recursive: true });
  writeFileSync(join(WORKSPACE, "calc.py"), MENDED.replace("+", "-"));
  writeFileSync(join(WORKSPACE, "test_calc.py"), readFileSync(join(FOLDER, "test_calc.py")));
  const before = new Set((await requestsSoFar()).map((request) => request.name));
  const words = await work();
  const made = (await requestsSoFar()).filter((request) => !before.has(request.name));
  // The latest come first. Agents also ask for a title and the like: those have no tools, and are short.
  return { words, requests: made.reverse().filter((request) => request.prompt_tokens > 5000) };
}

async function requestsSoFar() {
  return (await (await fetch(`${URL_}/ui/state`)).json()).requests;
}
