// Streams an answer from Baton: ./client 127.0.0.1:8001 'What is 12 + 30?'
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "baton/v1/generation_service.grpc.pb.h"

std::shared_ptr<grpc::ChannelCredentials> credentials() {
  const char* authority = std::getenv("BATON_CA");
  if (!authority) return grpc::InsecureChannelCredentials();
  std::ifstream file(authority);
  grpc::SslCredentialsOptions options;
  options.pem_root_certs.assign(std::istreambuf_iterator<char>(file), {});
  return grpc::SslCredentials(options);
}

int main(int, char** argv) {
  auto stub = baton::v1::GenerationService::NewStub(grpc::CreateChannel(argv[1], credentials()));
  baton::v1::GenerateRequest request;
  auto* message = request.mutable_conversation()->add_messages();
  message->set_role("user");
  message->set_content(argv[2]);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_max_token_count(256);

  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  if (const char* key = std::getenv("BATON_KEY")) context.AddMetadata("authorization", std::string("Bearer ") + key);
  auto reader = stub->Generate(&context, request);
  for (baton::v1::GenerateResponse part; reader->Read(&part);) {
    std::cout << part.text() << std::flush;
    if (part.has_finished()) std::cerr << "\n" << part.finished().usage().completion_token_count() << " tokens\n";
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) std::cerr << status.error_code() << ": " << status.error_message() << "\n";
  return status.ok() ? 0 : 1;
}
