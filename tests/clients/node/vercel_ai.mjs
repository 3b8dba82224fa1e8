// Vercel's AI SDK, by its providers for OpenAI's chat and responses, for servers like them, and for Anthropic's API.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import {
  ANSWER, cachedShare, expect, expectIdle, expectRefusal, expectTrue, expectWeather, joined, KEY, LONG_QUESTION, MODEL,
  PARAMETERS, QUESTION, run, URL_,
} from "./features.mjs";

const compatible = createOpenAICompatible({
  name: "baton", baseURL: `${URL_}/v1`, apiKey: KEY, includeUsage: true, supportsStructuredOutputs: true,
});
const openai = createOpenAI({ baseURL: `${URL_}/v1`, apiKey: KEY });
const anthropic = createAnthropic({ baseURL: `${URL_}/v1`, apiKey: KEY });
const asked = { model: compatible(MODEL), temperature: 0, maxOutputTokens: 300, maxRetries: 0 };
const weather = tool({ description: "Tells the weather.", inputSchema: jsonSchema(PARAMETERS) });
const forced = { tools: { get_weather: weather }, toolChoice: { type: "tool", toolName: "get_weather" } };

run({
  async create() {
    for (const model of [compatible(MODEL), openai.chat(MODEL)])
      expect((await generateText({ ...asked, model, prompt: QUESTION })).text, ANSWER, "answer");
    expectTrue((await generateText({ ...asked, model: compatible.completionModel(MODEL), prompt: QUESTION })).text, "no text");
  },
  async stream() {
    expect(await joined(streamText({ ...asked, prompt: QUESTION }).textStream, (text) => text), ANSWER, "streamed");
  },
  async usage() {
    const whole = (await generateText({ ...asked, prompt: QUESTION })).usage;
    const result = streamText({ ...asked, prompt: QUESTION });
    await result.consumeStream();
    expect((await result.usage).totalTokens, whole.totalTokens, "total tokens");
  },
  async tools() {
    for (const model of [compatible(MODEL), openai.chat(MODEL), openai.responses(MODEL), anthropic(MODEL)]) {
      const [call] = (await generateText({ ...asked, model, prompt: QUESTION, ...forced })).toolCalls;
      expectWeather(call.input);
    }
    const result = streamText({ ...asked, prompt: QUESTION, ...forced });
    expectWeather((await result.toolCalls)[0].input);
  },
  async loop() {
    let seen = 0;
    const execute = async () => `sunny, ${++seen}`;
    const tools = { get_weather: tool({ ...weather, execute }) };
    const toolChoice = forced.toolChoice;
    const result = await generateText({ ...asked, prompt: QUESTION, tools, toolChoice, stopWhen: stepCountIs(3) });
    expect([result.steps.length, seen], [3, 3], "steps and results");
    const used = result.steps.at(-1).usage;
    expectTrue(used.inputTokens > result.steps[0].usage.inputTokens, "the results are no part of the prompt");
  },
  async structured() {
    for (const model of [compatible(MODEL), openai.responses(MODEL)])
      expectWeather((await generateObject({ ...asked, model, prompt: QUESTION, schema: jsonSchema(PARAMETERS) })).object);
  },
  async responses() {
    const model = openai.responses(MODEL);
    expect((await generateText({ ...asked, model, prompt: QUESTION })).text, ANSWER, "answer");
    expect(await joined(streamText({ ...asked, model, prompt: QUESTION }).textStream, (text) => text), ANSWER, "streamed");
  },
  async messages() {
    const model = anthropic(MODEL);
    expect((await generateText({ ...asked, model, prompt: QUESTION })).text, ANSWER, "answer");
    expect(await joined(streamText({ ...asked, model, prompt: QUESTION }).textStream, (text) => text), ANSWER, "streamed");
  },
  async errors() {
    await expectRefusal(() => generateText({ ...asked, temperature: -1, prompt: QUESTION }), 400, "temperature");
  },
  async abort() {
    const controller = new AbortController();
    const options = { providerOptions: { baton: { ignore_eos: true } }, maxOutputTokens: 3000 };
    const result = streamText({ ...asked, ...options, prompt: QUESTION, abortSignal: controller.signal });
    for await (const _ of result.textStream) controller.abort();
    await expectIdle();
  },
  async cached() {
    const turns = [{ role: "user", content: LONG_QUESTION }];
    const first = await generateText({ ...asked, messages: turns });
    turns.push({ role: "assistant", content: first.text }, { role: "user", content: QUESTION });
    const used = (await generateText({ ...asked, messages: turns })).usage;
    return cachedShare(used.cachedInputTokens, used.inputTokens);
  },
});
