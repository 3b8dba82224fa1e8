// Streams an answer from Baton: node client.mjs 127.0.0.1:8001 'What is 12 + 30?'
import { readFileSync } from "node:fs";
import { argv, env, stderr, stdout } from "node:process";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const options = { includeDirs: ["protos"], enums: String, defaults: true };
const definition = loader.loadSync("baton/v1/generation_service.proto", options);
const { GenerationService } = grpc.loadPackageDefinition(definition).baton.v1;

const [address, question] = argv.slice(2);
const credentials = env.BATON_CA
  ? grpc.credentials.createSsl(readFileSync(env.BATON_CA))
  : grpc.credentials.createInsecure();
const metadata = new grpc.Metadata();
if (env.BATON_KEY) metadata.set("authorization", `Bearer ${env.BATON_KEY}`);

const client = new GenerationService(address, credentials);
const request = {
  conversation: { messages: [{ role: "user", content: question }] },
  sampling: { temperature: 0, maxTokenCount: 256 },
};
try {
  for await (const { text, finished } of client.generate(request, metadata, { deadline: Date.now() + 60_000 })) {
    stdout.write(text);
    if (finished) stderr.write(`\n${finished.usage.completionTokenCount} tokens\n`);
  }
} catch (error) {
  stderr.write(`${error.message}\n`);
  process.exitCode = 1;
} finally {
  client.close();
}
