// Twenty checks of baton.v1 from C++: ./checks NAME ...; a line of JSON for each. See ../python/checks.py.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <future>
#include <iostream>
#include <iterator>
#include <map>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "baton/v1/generation_service.grpc.pb.h"

namespace v1 = baton::v1;
using Clock = std::chrono::steady_clock;
using Stub = v1::GenerationService::Stub;

const std::string kAddress = std::getenv("BATON_GRPC"), kModel = std::getenv("BATON_MODEL");
const std::string kService = "baton.v1.GenerationService", kQuestion = "What is 12 + 30?", kAnswer = "12 + 30 = 42";
const char* const kSum =
    R"({"type":"object","properties":{"answer":{"type":"integer"}},"required":["answer"],"additionalProperties":false})";
const char* const kWeather = R"({"type":"object","properties":{"city":{"enum":["Paris","Oslo"]}},"required":["city"],"additionalProperties":false})";

const auto channel = grpc::CreateChannel(kAddress, grpc::InsecureChannelCredentials());
const auto stub = v1::GenerationService::NewStub(channel);

template <typename Actual, typename Expected>
void Expect(const Actual& actual, const Expected& expected) {
  if (actual == expected) return;
  std::ostringstream text;
  text << "expected " << expected << ", got " << actual;
  throw std::runtime_error(text.str());
}

v1::GenerateRequest Ask(int limit, bool ignore_eos = false) {
  v1::GenerateRequest request;
  request.set_model(kModel);
  auto* turn = request.mutable_conversation()->add_messages();
  turn->set_role("user");
  turn->set_content(kQuestion);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_max_token_count(limit);
  request.mutable_sampling()->set_ignore_eos(ignore_eos);
  return request;
}

// What a stream brought.
struct Output {
  std::string text;
  int num_tokens = 0, num_parts = 0;
  std::vector<v1::TokenLogprob> logprobs;
  std::vector<v1::ToolCallDelta> calls;
  v1::GenerationEnd end;
  grpc::Status status;
};

Output Read(Stub& to, grpc::ClientContext& context, const v1::GenerateRequest& request) {
  Output output;
  auto reader = to.Generate(&context, request);
  for (v1::GenerateResponse part; reader->Read(&part); ++output.num_parts) {
    output.text += part.text();
    output.num_tokens += part.token_ids_size();
    output.logprobs.insert(output.logprobs.end(), part.logprobs().begin(), part.logprobs().end());
    output.calls.insert(output.calls.end(), part.tool_calls().begin(), part.tool_calls().end());
    if (part.has_finished()) output.end = part.finished();
  }
  output.status = reader->Finish();
  return output;
}

Output Generate(const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  Output output = Read(*stub, context, request);
  if (!output.status.ok()) throw std::runtime_error(output.status.error_message());
  return output;
}

v1::ToolCall Call() {
  auto request = Ask(300);
  auto* tool = request.mutable_conversation()->add_tools();
  tool->set_name("get_weather");
  tool->set_description("Tells the weather.");
  tool->set_parameters(kWeather);
  request.mutable_conversation()->mutable_tool_choice()->set_name("get_weather");
  const Output output = Generate(request);
  Expect(output.end.reason(), v1::FINISH_REASON_TOOL_CALLS);
  v1::ToolCall call;
  call.set_id(output.calls.at(0).id());
  call.set_name(output.calls.at(0).name());
  for (const auto& delta : output.calls) *call.mutable_arguments() += delta.arguments();
  return call;
}

// Calls a method by its name alone, bytes in, bytes out: health and reflection need no generated code.
std::string Raw(const std::string& method, const std::string& request) {
  grpc::GenericStub generic(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool is_ok = false;
  auto call = generic.PrepareCall(&context, method, &queue);
  grpc::Slice slice(request);
  grpc::ByteBuffer answer;
  grpc::Status status;
  call->StartCall(nullptr), queue.Next(&tag, &is_ok);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), {}, nullptr), queue.Next(&tag, &is_ok);
  call->Read(&answer, nullptr), queue.Next(&tag, &is_ok);
  call->Finish(&status, nullptr), queue.Next(&tag, &is_ok);
  if (!status.ok()) throw std::runtime_error(status.error_message());
  answer.DumpToSingleSlice(&slice);
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

void Wait(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

const std::map<std::string, std::function<void()>> kChecks = {
    {"models",
     [] {
       grpc::ClientContext context;
       v1::ListModelsResponse listed;
       Expect(stub->ListModels(&context, {}, &listed).error_message(), "");
       Expect(listed.models(0).name(), kModel);
       Expect(listed.models(0).max_context_token_count() > 0, true);
     }},
    {"conversation", [] { Expect(Generate(Ask(64)).text, kAnswer); }},
    {"text",
     [] {
       auto request = Ask(8, true);
       request.set_text("What is");
       Expect(Generate(request).end.usage().completion_token_count(), 8);
     }},
    {"tokens",
     [] {
       grpc::ClientContext context;
       v1::TokenizeRequest text;
       v1::TokenizeResponse tokenized;
       text.set_text("What is");
       Expect(stub->Tokenize(&context, text, &tokenized).error_message(), "");
       auto given = Ask(8), same = Ask(8);
       *given.mutable_tokens()->mutable_token_ids() = tokenized.token_ids();
       same.set_text("What is");
       Expect(Generate(given).text, Generate(same).text);
     }},
    {"stream", [] { Expect(Generate(Ask(48, true)).num_parts > 8, true); }},
    {"usage",
     [] {
       const Output output = Generate(Ask(64));
       Expect(output.end.usage().completion_token_count(), output.num_tokens);
       Expect(output.end.usage().prompt_token_count() > 0, true);
       Expect(output.end.reason(), v1::FINISH_REASON_STOP);
       Expect(output.end.placement().decode_node_id().empty(), false);
     }},
    {"logprobs",
     [] {
       auto request = Ask(64);
       request.mutable_sampling()->set_top_logprob_count(2);
       Output output = Generate(request);
       Expect(static_cast<int>(output.logprobs.size()), output.end.usage().completion_token_count());
       output.logprobs.pop_back();
       std::string text;
       for (const auto& entry : output.logprobs) {
         Expect(entry.alternatives_size(), 2);
         text += entry.text();
       }
       Expect(text, kAnswer);
     }},
    {"stop",
     [] {
       auto request = Ask(64);
       request.add_stop("=");
       const Output output = Generate(request);
       Expect(output.text + output.end.stop(), "12 + 30 =");
       Expect(output.end.usage().completion_token_count(), output.num_tokens);
     }},
    {"structured",
     [] {
       auto request = Ask(300);
       request.mutable_sampling()->mutable_structured_output()->set_json_schema(kSum);
       Expect(std::regex_match(Generate(request).text, std::regex(R"(\{"answer":-?[0-9]+\})")), true);
     }},
    {"tools",
     [] {
       const auto call = Call();
       Expect(call.name(), "get_weather");
       Expect(std::regex_match(call.arguments(), std::regex(R"re(\{"city": ?"(Paris|Oslo)".*\})re")), true);
     }},
    {"loop",
     [] {
       auto request = Ask(64);
       auto* turns = request.mutable_conversation();
       auto *asked = turns->add_messages(), *result = turns->add_messages();
       asked->set_role("assistant");
       *asked->add_tool_calls() = Call();
       result->set_role("tool");
       result->set_content("sunny");
       result->set_tool_call_id(asked->tool_calls(0).id());
       const Output output = Generate(request);
       Expect(output.end.usage().completion_token_count() > 0, true);
       Expect(output.calls.size(), 0u);
     }},
    {"errors",
     [] {
       grpc::ClientContext first, second;
       auto request = Ask(64);
       request.mutable_sampling()->set_temperature(-1);
       const auto refused = Read(*stub, first, request).status;
       Expect(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
       const std::string details = refused.error_details();  // a google.rpc.Status
       Expect(details.find("INVALID_FIELD") != details.npos, true);
       Expect(details.find("sampling.temperature") != details.npos, true);
       request = Ask(64);
       request.set_model("gpt");
       Expect(Read(*stub, second, request).status.error_code(), grpc::StatusCode::NOT_FOUND);
     }},
    {"deadline",
     [] {
       const auto started = Clock::now();
       grpc::ClientContext context;
       context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
       Expect(Read(*stub, context, Ask(3000, true)).status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
       Expect(Clock::now() - started < std::chrono::seconds(3), true);
     }},
    {"cancel",
     [] {
       grpc::ClientContext context;
       auto reader = stub->Generate(&context, Ask(3000, true));
       v1::GenerateResponse part;
       for (int i = 0; i < 4; ++i) Expect(reader->Read(&part), true);
       context.TryCancel();
       while (reader->Read(&part)) {
       }
       Expect(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
     }},
    {"streams",
     [] {
       std::vector<std::future<std::string>> texts;
       for (int i = 0; i < 50; ++i)
         texts.push_back(std::async(std::launch::async, [] { return Generate(Ask(16)).text; }));
       for (auto& text : texts) Expect(text.get(), kAnswer);
     }},
    {"health",
     [] {
       const std::string service = "\x0a" + std::string(1, static_cast<char>(kService.size())) + kService;
       Expect(Raw("/grpc.health.v1.Health/Check", service), "\x08\x01");  // SERVING
     }},
    {"reflection",
     [] {
       const std::string list_services("\x3a\x00", 2);
       const auto told = Raw("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", list_services);
       Expect(told.find(kService) != told.npos, true);
     }},
    {"tls_key",
     [] {
       std::ifstream file(std::getenv("BATON_CA"));
       grpc::SslCredentialsOptions options;
       options.pem_root_certs.assign(std::istreambuf_iterator<char>(file), {});
       const auto secure = grpc::CreateChannel(std::getenv("BATON_GRPC_TLS"), grpc::SslCredentials(options));
       const auto other = v1::GenerationService::NewStub(secure);
       grpc::ClientContext known, unknown;
       known.AddMetadata("authorization", std::string("Bearer ") + std::getenv("BATON_KEY"));
       Expect(Read(*other, known, Ask(64)).text, kAnswer);
       Expect(Read(*other, unknown, Ask(64)).status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
     }},
    {"keepalive",
     [] {
       grpc::ChannelArguments arguments;
       arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 1000);
       arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
       const auto pinging = grpc::CreateCustomChannel(kAddress, grpc::InsecureChannelCredentials(), arguments);
       const auto other = v1::GenerationService::NewStub(pinging);
       grpc::ClientContext before, after;
       Expect(Read(*other, before, Ask(64)).text, kAnswer);
       Wait(4);  // pings go out meanwhile
       Expect(Read(*other, after, Ask(64)).text, kAnswer);
     }},
    {"request_id",
     [] {
       grpc::ClientContext context;
       context.AddMetadata("x-request-id", "cpp-1");
       Expect(Read(*stub, context, Ask(64)).end.request_id(), "cpp-1");
       const auto& told = context.GetServerInitialMetadata().find("x-request-id")->second;
       Expect(std::string(told.data(), told.size()), "cpp-1");
     }},
};

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const auto started = Clock::now();
    std::string wrong;
    try {
      kChecks.at(argv[i])();
    } catch (const std::exception& error) {
      wrong = std::regex_replace(error.what(), std::regex(R"(["\\\s]+)"), " ");
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - started).count();
    std::cout << R"({"feature": ")" << argv[i] << R"(", "error": ")" << wrong << R"(", "seconds": )" << seconds << "}"
              << std::endl;
  }
}
