// The official Anthropic client for Node.

import Anthropic from "@anthropic-ai/sdk";
import {
  ANSWER, cachedShare, expect, expectIdle, expectRefusal, expectTrue, expectWeather, KEY, LONG_QUESTION, MODEL,
  PARAMETERS, QUESTION, run, URL_,
} from "./features.mjs";

const client = new Anthropic({ baseURL: URL_, apiKey: KEY, maxRetries: 0, timeout: 60_000 });
const asked = { model: MODEL, temperature: 0, max_tokens: 64 };
const message = { ...asked, messages: [{ role: "user", content: QUESTION }] };
const weather = { name: "get_weather", description: "Tells the weather.", input_schema: PARAMETERS };

run({
  async create() {
    const answer = await client.messages.create(message);
    expect([answer.content[0].text, answer.stop_reason], [ANSWER, "end_turn"], "answer");
  },
  async stream() {
    expect(await client.messages.stream(message).finalText(), ANSWER, "streamed");
  },
  async usage() {
    const whole = (await client.messages.create(message)).usage;
    const streamed = (await client.messages.stream(message).finalMessage()).usage;
    expect(streamed.output_tokens, whole.output_tokens, "output tokens");
    const counted = await client.messages.countTokens({ model: MODEL, messages: message.messages });
    expect(whole.input_tokens + (whole.cache_read_input_tokens ?? 0), counted.input_tokens, "input tokens");
  },
  async tools() {
    const choice = { type: "tool", name: "get_weather" };
    const body = { ...message, max_tokens: 300, tools: [weather], tool_choice: choice };
    const [call] = (await client.messages.create(body)).content;
    expectWeather(call.input);
    const [streamed] = (await client.messages.stream(body).finalMessage()).content;
    expect(streamed.input, call.input, "streamed input");
  },
  async structured() {
    const format = { type: "json_schema", schema: PARAMETERS };
    const answer = await client.messages.create({ ...message, max_tokens: 300, output_config: { format } });
    expectWeather(JSON.parse(answer.content[0].text));
  },
  async models() {
    const [model] = (await client.models.list()).data;
    expect([model.id, model.type], [MODEL, "model"], "model");
    expectTrue(model.display_name && model.created_at, `model ${JSON.stringify(model)}`);
  },
  async errors() {
    await expectRefusal(() => client.messages.create({ ...message, model: "gpt" }), 404, "gpt");
    await expectRefusal(() => client.messages.create({ ...message, temperature: -1 }), 400, "temperature");
  },
  async hints() {
    const hints = { context_management: { edits: [] }, metadata: { user_id: "u" }, service_tier: "auto" };
    expect((await client.messages.create({ ...message, ...hints })).content[0].text, ANSWER, "answer");
  },
  async abort() {
    const stream = await client.messages.create({ ...message, max_tokens: 3000, ignore_eos: true, stream: true });
    let seen = 0;
    for await (const _ of stream) if (++seen === 4) break;
    await expectIdle();
  },
  async cached() {
    const turns = [{ role: "user", content: LONG_QUESTION }];
    const first = await client.messages.create({ ...asked, messages: turns });
    turns.push({ role: "assistant", content: first.content }, { role: "user", content: QUESTION });
    const used = (await client.messages.create({ ...asked, messages: turns })).usage;
    return cachedShare(used.cache_read_input_tokens, used.input_tokens + (used.cache_read_input_tokens ?? 0));
  },
});
