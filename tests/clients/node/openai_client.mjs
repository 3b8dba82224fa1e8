// The official OpenAI client for Node.

import OpenAI from "openai";
import {
  ANSWER, cachedShare, expect, expectIdle, expectRefusal, expectWeather, joined, KEY, LONG_QUESTION, MODEL, PARAMETERS,
  QUESTION, run, URL_,
} from "./features.mjs";

const client = new OpenAI({ baseURL: `${URL_}/v1`, apiKey: KEY, maxRetries: 0, timeout: 60_000 });
const asked = { model: MODEL, temperature: 0, max_tokens: 64 };
const chat = { ...asked, messages: [{ role: "user", content: QUESTION }] };
const weather = { name: "get_weather", description: "Tells the weather.", parameters: PARAMETERS };
const withTools = {
  ...chat,
  max_tokens: 300,
  tools: [{ type: "function", function: weather }],
  tool_choice: { type: "function", function: { name: "get_weather" } },
};
const textOf = (chunk) => chunk.choices[0]?.delta?.content;

run({
  async create() {
    const [choice] = (await client.chat.completions.create(chat)).choices;
    expect([choice.message.content, choice.finish_reason], [ANSWER, "stop"], "answer");
  },
  async stream() {
    expect(await joined(await client.chat.completions.create({ ...chat, stream: true }), textOf), ANSWER, "streamed");
    const helped = await client.chat.completions.stream(chat).finalChatCompletion();
    expect(helped.choices[0].message.content, ANSWER, "final completion");
  },
  async usage() {
    const whole = (await client.chat.completions.create(chat)).usage;
    const options = { include_usage: true, continuous_usage_stats: true };
    const chunks = [];
    for await (const chunk of await client.chat.completions.create({ ...chat, stream: true, stream_options: options }))
      chunks.push(chunk);
    expect(chunks.at(-1).usage.total_tokens, whole.total_tokens, "total tokens");
    expect(chunks.filter((chunk) => chunk.usage).length, chunks.length, "chunks with a usage");
  },
  async logprobs() {
    const answer = await client.chat.completions.create({ ...chat, logprobs: true, top_logprobs: 2 });
    expect(answer.choices[0].logprobs.content.length, answer.usage.completion_tokens, "log-probabilities");
  },
  async tools() {
    const [call] = (await client.chat.completions.create(withTools)).choices[0].message.tool_calls;
    expectWeather(JSON.parse(call.function.arguments));
    const streamed = await client.chat.completions.stream(withTools).finalChatCompletion();
    const [again] = streamed.choices[0].message.tool_calls;
    expect(again.function.arguments, call.function.arguments, "streamed arguments");
  },
  async structured() {
    const form = { type: "json_schema", json_schema: { name: "weather", schema: PARAMETERS, strict: true } };
    const parsed = await client.chat.completions.parse({ ...chat, max_tokens: 300, response_format: form });
    expectWeather(JSON.parse(parsed.choices[0].message.content));
  },
  async responses() {
    const body = { model: MODEL, input: QUESTION, temperature: 0 };
    expect((await client.responses.create(body)).output_text, ANSWER, "answer");
    expect((await client.responses.stream(body).finalResponse()).output_text, ANSWER, "streamed answer");
  },
  async response_tools() {
    const tools = [{ type: "function", ...weather, strict: true }];
    const body = { model: MODEL, input: QUESTION, tools, tool_choice: { type: "function", name: "get_weather" } };
    const [item] = (await client.responses.stream(body).finalResponse()).output;
    expectWeather(JSON.parse(item.arguments));
  },
  async models() {
    expect((await client.models.list()).data.map((model) => model.id), [MODEL], "models");
  },
  async errors() {
    await expectRefusal(() => client.chat.completions.create({ ...chat, model: "gpt" }), 404, "gpt");
    await expectRefusal(() => client.chat.completions.create({ ...chat, temperature: -1 }), 400, "temperature");
  },
  async hints() {
    const hints = { prompt_cache_key: "k", safety_identifier: "s", verbosity: "low", store: false };
    const [choice] = (await client.chat.completions.create({ ...chat, ...hints })).choices;
    expect(choice.message.content, ANSWER, "answer");
  },
  async abort() {
    const long = { ...chat, max_tokens: 3000, ignore_eos: true, stream: true };
    const stream = await client.chat.completions.create(long);
    let seen = 0;
    for await (const _ of stream) if (++seen === 4) break;
    await expectIdle();
  },
  async cached() {
    const turns = [{ role: "user", content: LONG_QUESTION }];
    const first = (await client.chat.completions.create({ ...asked, messages: turns })).choices[0].message;
    turns.push({ role: "assistant", content: first.content }, { role: "user", content: QUESTION });
    const used = (await client.chat.completions.create({ ...asked, messages: turns })).usage;
    return cachedShare(used.prompt_tokens_details.cached_tokens, used.prompt_tokens);
  },
});
