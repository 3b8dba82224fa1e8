// Receives a prompt's KV from a prefill node, with @grpc/grpc-js and the .proto files alone.
//
//   node receive_kv.js PROTO_FOLDER HOST:PORT REQUEST
//
// REQUEST is a PrefillRequest as JSON. Prints what came as JSON: the kinds of elements in order, the digest of all K and V in order
// of frame numbers, the first token, and the summary.
"use strict";

const crypto = require("node:crypto");
const path = require("node:path");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [folder, address, request] = process.argv.slice(2);
const definition = loader.loadSync(path.join(folder, "baton/internal/v1/prefill_service.proto"), {
  includeDirs: [folder],
  keepCase: true,
  longs: Number,
  enums: String,
  oneofs: true,
});
const { PrefillService } = grpc.loadPackageDefinition(definition).baton.internal.v1;
const client = new PrefillService(address, grpc.credentials.createInsecure(), { "grpc.max_receive_message_length": -1 });

const kinds = [];
const frames = [];
let firstToken = null;
let summary = null;
const call = client.Prefill(JSON.parse(request), { deadline: new Date(Date.now() + 60000) });
call.on("data", (response) => {
  kinds.push(response.element);
  if (response.frame) frames.push(response.frame);
  if (response.first_token) firstToken = response.first_token.token.token_id;
  if (response.summary) summary = response.summary;
});
call.on("error", () => {});
call.on("status", (status) => {
  const digest = crypto.createHash("sha256");
  frames.sort((one, other) => one.sequence_number - other.sequence_number);
  for (const frame of frames) digest.update(frame.keys).update(frame.values);
  const numBytes = frames.reduce((sum, frame) => sum + frame.keys.length + frame.values.length, 0);
  console.log(JSON.stringify({ code: status.code, kinds, digest: digest.digest("hex"), numBytes, firstToken, summary }));
  client.close();
});
