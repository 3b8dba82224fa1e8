// Streams a generation from Baton's public gRPC API, by code that protoc makes of protos/. See the Makefile beside it.
//
//   ./generate 127.0.0.1:8001 'Once upon a time' 32
//
// Writes the text as it comes; then usage and placement, one line, to standard error. An error ends with status 1.

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

#include "baton/v1/generation_service.grpc.pb.h"

namespace v1 = baton::v1;

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: generate HOST:PORT TEXT MAX_TOKENS\n";
    return 2;
  }
  auto channel = grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials());
  auto stub = v1::GenerationService::NewStub(channel);

  v1::GenerateRequest request;
  request.set_text(argv[2]);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_max_token_count(std::atoi(argv[3]));

  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader(stub->Generate(&context, request));
  v1::GenerateResponse response;
  bool is_finished = false;  // a stream that ends without `finished` has failed
  while (reader->Read(&response)) {
    std::cout << response.text() << std::flush;
    if (response.has_finished()) {
      is_finished = true;
      std::cerr << response.finished().ShortDebugString() << "\n";
    }
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok() || !is_finished) {
    std::cerr << "error " << status.error_code() << ": " << status.error_message() << "\n";
    return 1;
  }
  return 0;
}
