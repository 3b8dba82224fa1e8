// LangChain's chat model for OpenAI's API, in JavaScript.

import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { ChatOpenAI } from "@langchain/openai";
import {
  ANSWER, cachedShare, expect, expectIdle, expectRefusal, expectTrue, expectWeather, joined, KEY, LONG_QUESTION, MODEL,
  PARAMETERS, QUESTION, run, URL_,
} from "./features.mjs";

const options = {
  model: MODEL, apiKey: KEY, configuration: { baseURL: `${URL_}/v1` }, temperature: 0, maxTokens: 300, maxRetries: 0,
};
const chat = new ChatOpenAI(options);
const weather = { name: "get_weather", description: "Tells the weather.", parameters: PARAMETERS };

run({
  async create() {
    expect((await chat.invoke(QUESTION)).content, ANSWER, "answer");
    const answers = await chat.batch([QUESTION, QUESTION]);
    expect(answers.map((answer) => answer.content), [ANSWER, ANSWER], "batch");
  },
  async stream() {
    expect(await joined(await chat.stream(QUESTION), (chunk) => chunk.content), ANSWER, "streamed");
  },
  async usage() {
    expect((await chat.invoke(QUESTION)).usage_metadata.output_tokens, 13, "output tokens");
  },
  async logprobs() {
    const answer = await new ChatOpenAI({ ...options, logprobs: true, topLogprobs: 2 }).invoke(QUESTION);
    const { content } = answer.response_metadata.logprobs;
    expect(content.length, answer.usage_metadata.output_tokens, "log-probabilities");
  },
  async tools() {
    const bound = chat.bindTools([{ type: "function", function: weather }], { tool_choice: "get_weather" });
    const message = await bound.invoke(QUESTION);
    const [call] = message.tool_calls;
    expectWeather(call.args);
    const result = new ToolMessage({ content: "sunny", tool_call_id: call.id });
    expectTrue((await chat.invoke([new HumanMessage(QUESTION), message, result])).content, "no answer to the result");
  },
  async structured() {
    for (const method of ["jsonSchema", "functionCalling"])
      expectWeather(await chat.withStructuredOutput(PARAMETERS, { method, name: "get_weather" }).invoke(QUESTION));
  },
  async responses() {
    const model = new ChatOpenAI({ ...options, useResponsesApi: true });
    expect((await model.invoke(QUESTION)).text, ANSWER, "answer");
    expect(await joined(await model.stream(QUESTION), (chunk) => chunk.text), ANSWER, "streamed");
  },
  async errors() {
    await expectRefusal(() => new ChatOpenAI({ ...options, temperature: -1 }).invoke(QUESTION), 400, "temperature");
  },
  async abort() {
    const model = new ChatOpenAI({ ...options, maxTokens: 3000, modelKwargs: { ignore_eos: true } });
    let seen = 0;
    for await (const _ of await model.stream(QUESTION)) if (++seen === 4) break;
    await expectIdle();
  },
  async cached() {
    const turns = [new HumanMessage(LONG_QUESTION)];
    const first = await chat.invoke(turns);
    const used = (await chat.invoke([...turns, first, new HumanMessage(QUESTION)])).usage_metadata;
    return cachedShare(used.input_token_details.cache_read, used.input_tokens);
  },
});
