// One end of a gRPC stream of raw bytes, with @grpc/grpc-js; the other end is baton.grpc_sockets.
//
//   node stream_bytes.js receive HOST:PORT "SIZE SIZE ..."   asks for messages of these sizes, prints what came as JSON
//   node stream_bytes.js serve                               prints its port, then serves the same question until killed
"use strict";

const grpc = require("@grpc/grpc-js");

const PATH = "/test.Service/Stream";
const raw = (bytes) => bytes;
const METHOD = {
  path: PATH,
  requestStream: false,
  responseStream: true,
  requestSerialize: raw,
  requestDeserialize: raw,
  responseSerialize: raw,
  responseDeserialize: raw,
};
const UNLIMITED = { "grpc.max_receive_message_length": -1, "grpc.max_send_message_length": -1 };

function pattern(size) {
  const bytes = Buffer.alloc(size);
  for (let index = 0; index < size; index++) bytes[index] = index % 251;
  return bytes;
}

function receive(address, question) {
  const client = new grpc.Client(address, grpc.credentials.createInsecure(), UNLIMITED);
  const metadata = new grpc.Metadata();
  metadata.set("x-bin", Buffer.from([255, 0, 1]));
  const deadline = new Date(Date.now() + 60000);
  const call = client.makeServerStreamRequest(PATH, raw, raw, Buffer.from(question), metadata, { deadline });
  const messages = [];
  call.on("data", (bytes) => messages.push({ size: bytes.length, isRight: bytes.equals(pattern(bytes.length)) }));
  call.on("error", () => {});
  call.on("status", (status) => {
    const details = status.metadata.get("grpc-status-details-bin").map((value) => value.toString("hex"));
    console.log(JSON.stringify({ messages, code: status.code, message: status.details, details }));
    client.close();
  });
}

function serve() {
  const server = new grpc.Server(UNLIMITED);
  server.addService({ Stream: METHOD }, {
    Stream: async (call) => {
      for (const size of call.request.toString().split(" ").filter(Boolean)) {
        if (!call.write(pattern(Number(size)))) await new Promise((resolve) => call.once("drain", resolve));
      }
      const metadata = new grpc.Metadata();
      metadata.set("grpc-status-details-bin", Buffer.from([0, 1, 255]));
      call.emit("error", { code: grpc.status.DATA_LOSS, details: "Größe 100%", metadata });
    },
  });
  server.bindAsync("127.0.0.1:0", grpc.ServerCredentials.createInsecure(), (error, port) => {
    if (error) throw error;
    console.log(port);
  });
}

if (process.argv[2] === "serve") serve();
else receive(process.argv[3], process.argv[4]);
