#!/usr/bin/env node
// Makes a model call a tool through the official OpenAI client for Node: whole, streamed, and by the client's own helper.
//
//   node tools.js --url http://127.0.0.1:8000/v1 --model NAME --request '{"messages": [...], "tools": [...], ...}'
//
// Writes one JSON object: {"whole": call, "streamed": call, "helped": call, "finish_reason"}, where a call is {"name",
// "arguments"}; an error is {"error": {"status", "param", "code"}} and exit status 1.
'use strict';

const { parseArgs } = require('node:util');
const OpenAI = require('openai');

const FLAGS = { url: { type: 'string' }, model: { type: 'string' }, request: { type: 'string' } };

async function main() {
  const { values: flags } = parseArgs({ options: FLAGS });
  const client = new OpenAI({ baseURL: flags.url, apiKey: 'none', maxRetries: 0, timeout: 60_000 });
  const request = { model: flags.model, ...JSON.parse(flags.request) };
  try {
    const whole = await client.chat.completions.create(request);
    const streamed = await collect(await client.chat.completions.create({ ...request, stream: true }));
    const helped = await client.chat.completions.stream(request).finalChatCompletion();
    console.log(
      JSON.stringify({
        whole: called(whole.choices[0].message.tool_calls[0]),
        helped: called(helped.choices[0].message.tool_calls[0]),
        ...streamed,
      }),
    );
  } catch (error) {
    if (!(error instanceof OpenAI.APIError)) throw error;
    console.log(JSON.stringify({ error: { status: error.status, param: error.param, code: error.code } }));
    process.exitCode = 1;
  }
}

// One call of a stream, put together from its deltas as a user would.
async function collect(stream) {
  const call = { name: '', arguments: '' };
  let finishReason = null;
  for await (const chunk of stream) {
    const [choice] = chunk.choices;
    for (const part of choice.delta.tool_calls ?? []) {
      if (part.function.name) call.name = part.function.name;
      call.arguments += part.function.arguments;
    }
    finishReason = choice.finish_reason ?? finishReason;
  }
  return { streamed: call, finish_reason: finishReason };
}

function called(call) {
  return { name: call.function.name, arguments: call.function.arguments };
}

main();
