// A prefill node in Node: @grpc/grpc-js and the .proto files alone, no code of Baton.
//
//   node prefill_node.js PROTO_FOLDER VOCABULARY_SIZE END_TOKEN TRANSFER_KEY [BREAK_AFTER]
//
// Prints its port, then serves PrefillService until killed, to whom a router has granted it by TRANSFER_KEY, in hexadecimal digits. It computes the KV of Baton's mock model, a 64-bit state per position and
// layer whose words fill K and whose complement fills V, for whatever float16 layout the caller has. With BREAK_AFTER, the first
// stream of every attempt fails after so many frames; the caller may then ask for the rest.
"use strict";

const crypto = require("node:crypto");
const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [folder, vocabularySize, endToken, transferKey, breakAfter] = process.argv.slice(2);
const CHUNK_TOKENS = 11;
const ELEMENT_BYTES = 2;
const WORD_BYTES = 8;
const MASK = (1n << 64n) - 1n;

// -- CRC-32C (Castagnoli), bit-reflected polynomial 0x82F63B78

const TABLE = Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1;
  return crc >>> 0;
});

function crc32c(...buffers) {
  let crc = 0xffffffff;
  for (const buffer of buffers) for (const byte of buffer) crc = TABLE[(crc ^ byte) & 0xff] ^ (crc >>> 8);
  return (crc ^ 0xffffffff) >>> 0;
}

// Numbers as little-endian words of 4 bytes, or of 8 where they are BigInts.
function words(...numbers) {
  return Buffer.concat(
    numbers.map((number) => {
      const bytes = Buffer.alloc(typeof number === "bigint" ? 8 : 4);
      if (typeof number === "bigint") bytes.writeBigInt64LE(number);
      else bytes.writeUInt32LE(number >>> 0);
      return bytes;
    }),
  );
}

// -- What a router has granted

function codeOf(word, grant) {
  return crypto.createHmac("sha256", Buffer.from(transferKey, "hex")).update(`${word}\0`).update(grant.claims).digest();
}

// -- The mock model

function mix(value) {
  let mixed = (value + 0x9e3779b97f4a7c15n) & MASK;
  mixed = ((mixed ^ (mixed >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
  mixed = ((mixed ^ (mixed >> 27n)) * 0x94d049bb133111ebn) & MASK;
  return mixed ^ (mixed >> 31n);
}

function stateOf(tokenId, position, layer) {
  return mix(mix(mix(BigInt(position)) ^ BigInt(tokenId)) ^ mix(BigInt(layer)));
}

function nextToken(tokenIds, layerCount) {
  let sum = 0n;
  for (let layer = 0; layer < layerCount; layer++)
    tokenIds.forEach((tokenId, position) => (sum = (sum + stateOf(tokenId, position, layer)) & MASK));
  let tokenId = Number(mix(sum) % BigInt(vocabularySize));
  while (tokenId === Number(endToken)) tokenId = (tokenId + 1) % Number(vocabularySize);
  return tokenId;
}

// [kv heads][tokens][head dim]: every word of a vector is its position's.
function vectors(states, headCount, headDim) {
  const wordCount = (headDim * ELEMENT_BYTES) / WORD_BYTES;
  const bytes = Buffer.alloc(headCount * states.length * wordCount * WORD_BYTES);
  let offset = 0;
  for (let head = 0; head < headCount; head++)
    for (const state of states)
      for (let word = 0; word < wordCount; word++) offset = bytes.writeBigUInt64LE(state, offset);
  return bytes;
}

// -- The stream

class KvStream {
  constructor(request, key) {
    this.request = request;
    this.key = key;
    this.frameCount = 0;
    this.byteCount = 0;
    this.crcs = [];
  }

  *messages() {
    const { token_ids: tokenIds, kv_token_begin: tokenBegin, expected_layout: layout } = this.request;
    yield { layout, request_crc32c: this.key, transfer_answer: codeOf("answer", this.request.transfer) };
    const begins = layout.layers.map((_, layer) => this.request.layer_token_begins[layer] ?? tokenBegin);
    for (let start = tokenBegin; start < tokenIds.length; start += CHUNK_TOKENS)
      for (let layer = 0; layer < layout.layers.length; layer++) {
        const from = Math.max(start, begins[layer]);
        const end = Math.min(start + CHUNK_TOKENS, tokenIds.length);
        if (from < end) yield { frame: this.frame(layer, from, end) };
      }
    const tokenId = nextToken(tokenIds, layout.layers.length);
    yield { first_token: { token: { token_id: tokenId }, crc32c: crc32c(words(...tokenIds, tokenId)) } };
    yield {
      summary: {
        frame_count: this.frameCount,
        byte_count: this.byteCount,
        token_begin: tokenBegin,
        token_end: tokenIds.length,
        frames_crc32c: crc32c(words(...this.crcs)),
        queue_duration: {},
        compute_duration: {},
      },
    };
  }

  frame(layer, from, end) {
    const spec = this.request.expected_layout.layers[layer];
    const states = [];
    for (let position = from; position < end; position++)
      states.push(stateOf(this.request.token_ids[position], position, layer));
    const keys = vectors(states, spec.kv_head_count, spec.key_head_dim);
    const values = vectors(states.map((state) => state ^ MASK), spec.kv_head_count, spec.value_head_dim);
    const crc = crc32c(keys, values);
    const number = this.frameCount++;
    this.byteCount += keys.length + values.length;
    this.crcs.push(crc);
    return {
      sequence_number: number,
      layer_begin: layer,
      layer_count: 1,
      token_begin: from,
      token_count: end - from,
      crc32c: crc,
      header_crc32c: crc32c(words(this.key, BigInt(number), layer, 1, from, end - from, crc)),
      keys,
      values,
    };
  }
}

async function prefill(call) {
  const { request, key } = call.request;
  if (!crypto.timingSafeEqual(codeOf("ask", request.transfer), request.transfer.ask_code)) {
    call.emit("error", { code: grpc.status.PERMISSION_DENIED, details: "transfer.claims: not signed for this process" });
    return;
  }
  const stream = new KvStream(request, key);
  const isBreaking = breakAfter !== undefined && request.stream_number === 0;
  let frameCount = 0;
  for (const message of stream.messages()) {
    if (isBreaking && !message.layout && frameCount === Number(breakAfter)) {
      call.emit("error", { code: grpc.status.UNAVAILABLE, details: "broken on purpose" });
      return;
    }
    frameCount += message.frame ? 1 : 0;
    if (!call.write(message)) await new Promise((resolve) => call.once("drain", resolve));
  }
  call.end();
}

const definition = loader.loadSync(path.join(folder, "baton/internal/v1/prefill_service.proto"), {
  includeDirs: [folder],
  keepCase: true,
  longs: Number,
  enums: String,
  defaults: true,
  oneofs: true,
});
const service = definition["baton.internal.v1.PrefillService"];
const parse = service.Prefill.requestDeserialize;
service.Prefill.requestDeserialize = (bytes) => ({ request: parse(bytes), key: crc32c(bytes) });
const server = new grpc.Server();
server.addService({ Prefill: service.Prefill }, { Prefill: prefill });
server.bindAsync("127.0.0.1:0", grpc.ServerCredentials.createInsecure(), (error, port) => {
  if (error) throw error;
  console.log(port);
});
