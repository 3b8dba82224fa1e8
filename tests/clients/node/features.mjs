// Frame of a client's script: runs features by name, and tells of each in one line of JSON; see python/features.py.

export const URL_ = process.env.BATON_URL ?? "http://127.0.0.1:8000";
export const MODEL = process.env.BATON_MODEL ?? "baton-demo";
export const KEY = "none";
export const QUESTION = "What is 12 + 30?";
export const ANSWER = "12 + 30 = 42";
const CITIES = ["Paris", "Oslo"];
export const PARAMETERS = {
  type: "object",
  properties: { city: { type: "string", enum: CITIES }, days: { type: "integer", minimum: 1, maximum: 9 } },
  required: ["city", "days"],
  additionalProperties: false,
};
const sums = Array.from({ length: 60 }, (_, n) => `${n} + ${n + 1} = ${2 * n + 1}.`).join(" ");
export const LONG_QUESTION = `Remember: ${sums} ${QUESTION}`;

const ABORT_MS = 3000;
const MESSAGE_CHARACTERS = 400;

export async function run(features) {
  const names = process.argv.length > 2 ? process.argv.slice(2) : Object.keys(features);
  for (const name of names) {
    const started = performance.now();
    const line = { feature: name };
    try {
      line.note = (await features[name]()) ?? "";
    } catch (error) {
      line.error = `${error?.name}: ${error?.message}`.replace(/\s+/g, " ").slice(0, MESSAGE_CHARACTERS);
    }
    line.seconds = Math.round((performance.now() - started) / 10) / 100;
    console.log(JSON.stringify(line));
  }
}

export function expect(actual, expected, what) {
  const [seen, wanted] = [JSON.stringify(actual), JSON.stringify(expected)];
  if (seen !== wanted) throw new Error(`${what}: expected ${wanted}, got ${seen}`);
}

export function expectTrue(condition, what) {
  if (!condition) throw new Error(what);
}

export function expectWeather(value) {
  const isRight = CITIES.includes(value.city) && value.days >= 1 && value.days <= 9 && Object.keys(value).length === 2;
  expectTrue(isRight, `arguments that the schema forbids: ${JSON.stringify(value)}`);
}

export async function expectRefusal(call, status, ...words) {
  try {
    await call();
  } catch (error) {
    expect(error.status ?? error.statusCode, status, "status");
    for (const word of words) expectTrue(JSON.stringify([error.message, error.error, error.responseBody]).includes(word), `${word} is not in ${error.message}`);
    return;
  }
  throw new Error("no error");
}

export function cachedShare(numCached, numPrompt) {
  const share = (numCached ?? 0) / numPrompt;
  expectTrue(share >= 0.9, `cached share of the second turn ${share.toFixed(2)} of ${numPrompt} tokens`);
  return share.toFixed(2);
}

export async function expectIdle() {
  for (const deadline = performance.now() + ABORT_MS; ; ) {
    const page = await (await fetch(`${URL_}/metrics`)).text();
    const active = Number(/^baton_gateway_active_requests (\S+)/m.exec(page)[1]);
    if (active <= 1) return;
    expectTrue(performance.now() < deadline, `${active - 1} requests run ${ABORT_MS} ms after the abort`);
    await new Promise((done) => setTimeout(done, 20));
  }
}

export async function joined(parts, textOf) {
  let text = "";
  for await (const part of parts) text += textOf(part) ?? "";
  return text;
}
