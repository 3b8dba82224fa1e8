#!/usr/bin/env node
// Streams a generation from Baton's public gRPC API. Nothing here is generated: the service comes from the .proto files, or
// from the server itself by reflection.
//
//   node generate.js --protos protos --text 'Once upon a time'
//   node generate.js --protos protos --messages '[{"role": "user", "content": "What is 12 + 30?"}]'
//   node generate.js --reflection    --tokens 1,2,3 --sampling '{"temperature": 0, "max_token_count": 8}'
//
// With --take N it leaves after N messages, and the server drops what is left of the generation.
//
// Writes one JSON object per line as messages arrive: {"text", "token_ids"} for each delta, then {"finished"}; an error is
// {"error": {"code", "reason", "field", "details"}} and exit status 1.
'use strict';

const { parseArgs } = require('node:util');
const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');
const protobuf = require('protobufjs');

const SERVICE = 'baton.v1.GenerationService';
const LOADING = { keepCase: true, longs: String, enums: String, defaults: true, oneofs: true };

const FLAGS = {
  address: { type: 'string', default: '127.0.0.1:8001' },
  protos: { type: 'string' },
  reflection: { type: 'boolean', default: false },
  model: { type: 'string', default: '' },
  text: { type: 'string' },
  messages: { type: 'string' },
  tokens: { type: 'string' },
  sampling: { type: 'string', default: '{"temperature": 0, "max_token_count": 32}' },
  stop: { type: 'string', multiple: true, default: [] },
  take: { type: 'string', default: 'Infinity' },
};

async function main() {
  const { values: flags } = parseArgs({ options: FLAGS });
  const packages = await load(flags);
  const client = new packages.baton.v1.GenerationService(flags.address, grpc.credentials.createInsecure());
  const deadline = Date.now() + 180_000;
  let left = Number(flags.take);
  try {
    const call = client.Generate(request(flags), { deadline });
    for await (const response of call) {
      if (left > 0) print(response);
      left -= 1;
      if (left === 0) call.cancel();
    }
  } catch (error) {
    if (left > 0 || error.code !== grpc.status.CANCELLED) {
      console.log(JSON.stringify({ error: describe(error) }));
      process.exitCode = 1;
    }
  } finally {
    client.close();
  }
}

// The service's definition: from the folder of .proto files, or asked of the server.
async function load(flags) {
  if (flags.reflection) {
    const { GrpcReflection } = require('grpc-js-reflection-client');
    const reflection = new GrpcReflection(flags.address, grpc.credentials.createInsecure());
    const descriptor = await reflection.getDescriptorBySymbol(SERVICE);
    return descriptor.getPackageObject(LOADING);
  }
  const definition = protoLoader.loadSync('baton/v1/generation_service.proto', {
    ...LOADING,
    includeDirs: [flags.protos],
  });
  return grpc.loadPackageDefinition(definition);
}

// Exactly one of text, messages and tokens is the input.
function request(flags) {
  const input = {};
  if (flags.text !== undefined) input.text = flags.text;
  if (flags.messages !== undefined) input.conversation = { messages: JSON.parse(flags.messages) };
  if (flags.tokens !== undefined) input.tokens = { token_ids: flags.tokens.split(',').filter(Boolean).map(Number) };
  return { model: flags.model, ...input, sampling: JSON.parse(flags.sampling), stop: flags.stop };
}

function print({ text, token_ids, finished }) {
  console.log(JSON.stringify(finished ? { finished } : { text, token_ids }));
}

// Code, words, and what google.rpc.ErrorInfo adds: the reason and the field that is to blame.
function describe(error) {
  if (error.code === undefined) throw error;
  const [detail] = error.metadata.get('grpc-status-details-bin').flatMap((bytes) => STATUS.decode(bytes).details);
  const info = detail ? ERROR_INFO.decode(detail.value) : {};
  return { code: grpc.status[error.code], reason: info.reason, field: info.metadata?.field, details: error.details };
}

const { root: google } = protobuf.parse(`
  syntax = "proto3";
  package google.rpc;
  message Any { string type_url = 1; bytes value = 2; }
  message Status { int32 code = 1; string message = 2; repeated Any details = 3; }
  message ErrorInfo { string reason = 1; string domain = 2; map<string, string> metadata = 3; }
`);
const STATUS = google.lookupType('google.rpc.Status');
const ERROR_INFO = google.lookupType('google.rpc.ErrorInfo');

main();
