// Twenty checks of baton.v1 from Node: node checks.mjs NAME ...; a line of JSON for each. See ../python/checks.py.
import { readFileSync } from "node:fs";
import { argv, env } from "node:process";
import { isDeepStrictEqual } from "node:util";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";
import health from "grpc-health-check";
import googleProtos from "google-proto-files";
import { GrpcReflection } from "grpc-js-reflection-client";
import protobuf from "protobufjs";

const SERVICE = "baton.v1.GenerationService";
const [QUESTION, ANSWER] = ["What is 12 + 30?", "12 + 30 = 42"];
const SUM = { type: "object", properties: { answer: { type: "integer" } }, required: ["answer"], additionalProperties: false };
const WEATHER = { ...SUM, properties: { city: { enum: ["Paris", "Oslo"] } }, required: ["city"] };

const options = { includeDirs: ["protos"], enums: String, oneofs: true };
const load = (name) => grpc.loadPackageDefinition(loader.loadSync(name, options)).baton.v1;
const { GenerationService } = load("baton/v1/generation_service.proto");
const google = await protobuf.load(["error_details", "status"].map((name) => googleProtos.getProtoPath("rpc", `${name}.proto`)));

const insecure = grpc.credentials.createInsecure();
const client = new GenerationService(env.BATON_GRPC, insecure);
const unary = (method, request) =>
  new Promise((done, fail) => client[method](request, (error, answer) => (error ? fail(error) : done(answer))));

function expect(actual, expected) {
  if (!isDeepStrictEqual(actual, expected))
    throw new Error(`expected ${JSON.stringify(expected)}, got ${JSON.stringify(actual)}`);
}

const chat = (messages = [{ role: "user", content: QUESTION }], rest = {}) => ({ messages, ...rest });
const ask = (maxTokenCount = 64, sampling = {}, input = { conversation: chat() }) => ({
  model: env.BATON_MODEL,
  sampling: { temperature: 0, maxTokenCount, ...sampling },
  ...input,
});
const endless = (limit = 3000) => ask(limit, { ignoreEos: true });

async function generate(request, { from = client, metadata = {}, ...callOptions } = {}) {
  const call = from.generate(request, grpc.Metadata.fromHttp2Headers(metadata), callOptions);
  let headers;
  call.on("metadata", (told) => (headers = told));
  const parts = [];
  for await (const part of call) parts.push(part);
  const all = (name) => parts.flatMap((part) => part[name] ?? []);
  const text = parts.map((part) => part.text).join("");
  return { parts, text, all, headers, end: parts.at(-1).finished };
}

async function called() {
  const tool = { name: "get_weather", description: "Tells the weather.", parameters: JSON.stringify(WEATHER) };
  const conversation = chat(undefined, { tools: [tool], toolChoice: { name: "get_weather" } });
  const { all, end } = await generate(ask(300, {}, { conversation }));
  expect(end.reason, "FINISH_REASON_TOOL_CALLS");
  const deltas = all("toolCalls");
  return { id: deltas[0].id, name: deltas[0].name, arguments: deltas.map((delta) => delta.arguments).join("") };
}

// The code of a call that fails, and the reason and the field of its details.
async function failure(calling) {
  const error = await calling().then(() => undefined, (thrown) => thrown);
  if (error?.code === undefined) throw error ?? new Error("it was not refused");
  const words = [grpc.status[error.code]];
  for (const bytes of error.metadata.get("grpc-status-details-bin"))
    for (const detail of google.lookupType("google.rpc.Status").decode(bytes).details) {
      const name = detail.type_url.split("/").at(-1);
      const { reason, fieldViolations } = google.lookupType(name).decode(detail.value);
      words.push(reason ?? fieldViolations?.[0].field);
    }
  return words;
}

const checks = {
  async models() {
    const { models } = await unary("listModels", {});
    expect(models.map(({ name }) => name), [env.BATON_MODEL]);
    expect(models[0].maxContextTokenCount > 0, true);
  },
  async conversation() {
    expect((await generate(ask())).text, ANSWER);
  },
  async text() {
    const { end } = await generate(ask(8, { ignoreEos: true }, { text: "What is" }));
    expect(end.usage.completionTokenCount, 8);
  },
  async tokens() {
    const { tokenIds } = await unary("tokenize", { text: "What is" });
    const same = await generate(ask(8, {}, { text: "What is" }));
    expect((await generate(ask(8, {}, { tokens: { tokenIds } }))).text, same.text);
  },
  async stream() {
    expect((await generate(endless(48))).parts.length > 8, true);
  },
  async usage() {
    const { end, all } = await generate(ask());
    expect(end.usage.completionTokenCount, all("tokenIds").length);
    expect([end.usage.promptTokenCount > 0, end.reason], [true, "FINISH_REASON_STOP"]);
    expect(end.placement.decodeNodeId === "", false);
  },
  async logprobs() {
    const { end, all } = await generate(ask(64, { topLogprobCount: 2 }));
    const entries = all("logprobs");
    expect(entries.length, end.usage.completionTokenCount);
    expect(entries.every((entry) => entry.alternatives.length === 2), true);
    expect(entries.slice(0, -1).map((entry) => entry.text).join(""), ANSWER);
  },
  async stop() {
    const { text, end, all } = await generate({ ...ask(), stop: ["="] });
    expect([text, end.stop], ["12 + 30 ", "="]);
    expect(end.usage.completionTokenCount, all("tokenIds").length);
  },
  async structured() {
    const { text } = await generate(ask(300, { structuredOutput: { jsonSchema: JSON.stringify(SUM) } }));
    expect(Object.keys(JSON.parse(text)), ["answer"]);
  },
  async tools() {
    const call = await called();
    expect([call.name, WEATHER.properties.city.enum.includes(JSON.parse(call.arguments).city)], ["get_weather", true]);
  },
  async loop() {
    const call = await called();
    const turns = [
      { role: "user", content: QUESTION },
      { role: "assistant", toolCalls: [call] },
      { role: "tool", toolCallId: call.id, content: "sunny" },
    ];
    const { end, all } = await generate(ask(64, {}, { conversation: chat(turns) }));
    expect([end.usage.completionTokenCount > 0, all("toolCalls")], [true, []]);
  },
  async errors() {
    const refused = await failure(() => generate(ask(64, { temperature: -1 })));
    expect(refused, ["INVALID_ARGUMENT", "INVALID_FIELD", "sampling.temperature"]);
    const unknown = await failure(() => generate({ ...ask(), model: "gpt" }));
    expect(unknown.slice(0, 2), ["NOT_FOUND", "MODEL_NOT_FOUND"]);
  },
  async deadline() {
    const started = Date.now();
    expect(await failure(() => generate(endless(), { deadline: started + 300 })), ["DEADLINE_EXCEEDED"]);
    expect(Date.now() - started < 3000, true);
  },
  async cancel() {
    const call = client.generate(endless());
    const reading = async () => {
      let seen = 0;
      for await (const _ of call) if (++seen === 4) call.cancel();
    };
    expect(await failure(reading), ["CANCELLED"]);
  },
  async streams() {
    const all = await Promise.all(Array.from({ length: 50 }, () => generate(ask(16))));
    expect([...new Set(all.map(({ text }) => text))], [ANSWER]);
  },
  async health() {
    const { Health } = grpc.loadPackageDefinition(loader.loadSync(health.protoPath, { enums: String })).grpc.health.v1;
    const asking = new Health(env.BATON_GRPC, insecure);
    const told = await new Promise((done, fail) =>
      asking.check({ service: SERVICE }, (error, answer) => (error ? fail(error) : done(answer))),
    );
    expect(told.status, "SERVING");
  },
  async reflection() {
    const services = await new GrpcReflection(env.BATON_GRPC, insecure).listServices();
    expect(services.includes(SERVICE), true);
  },
  async tls_key() {
    const from = new GenerationService(env.BATON_GRPC_TLS, grpc.credentials.createSsl(readFileSync(env.BATON_CA)));
    const metadata = { authorization: `Bearer ${env.BATON_KEY}` };
    expect((await generate(ask(), { from, metadata })).text, ANSWER);
    expect(await failure(() => generate(ask(), { from })), ["UNAUTHENTICATED", "INVALID_API_KEY"]);
  },
  async keepalive() {
    const pings = { "grpc.keepalive_time_ms": 1000, "grpc.keepalive_permit_without_calls": 1 };
    const from = new GenerationService(env.BATON_GRPC, insecure, pings);
    expect((await generate(ask(), { from })).text, ANSWER);
    await new Promise((done) => setTimeout(done, 4000)); // pings go out meanwhile
    expect((await generate(ask(), { from })).text, ANSWER);
  },
  async request_id() {
    const { headers, end } = await generate(ask(), { metadata: { "x-request-id": "node-1" } });
    expect([headers.get("x-request-id"), end.requestId], [["node-1"], "node-1"]);
  },
};

for (const name of argv.slice(2)) {
  const started = performance.now();
  const line = { feature: name };
  try {
    await checks[name]();
  } catch (error) {
    line.error = `${error?.name}: ${error?.message}`.slice(0, 400);
  }
  console.log(JSON.stringify({ ...line, seconds: Math.round((performance.now() - started) / 10) / 100 }));
}
process.exit(0);
