# Streams an answer from Baton: ruby -I. client.rb 127.0.0.1:8001 'What is 12 + 30?'
require 'baton/v1/generation_service_services_pb'
require 'google/protobuf/well_known_types'
require 'google/rpc/error_details_pb'

address, question = ARGV
authority, key = ENV.values_at('BATON_CA', 'BATON_KEY')
credentials = authority ? GRPC::Core::ChannelCredentials.new(File.read(authority)) : :this_channel_is_insecure
stub = Baton::V1::GenerationService::Stub.new(address, credentials)

message = Baton::V1::ChatMessage.new(role: 'user', content: question)
request = Baton::V1::GenerateRequest.new(
  conversation: Baton::V1::Conversation.new(messages: [message]),
  sampling: Baton::V1::SamplingParameters.new(temperature: 0, max_token_count: 256)
)
metadata = key ? { 'authorization' => "Bearer #{key}" } : {}
begin
  stub.generate(request, metadata: metadata, deadline: Time.now + 60).each do |part|
    print part.text
    warn "\n#{part.finished.usage.completion_token_count} tokens" if part.finished
  end
rescue GRPC::BadStatus => e
  info = e.to_rpc_status&.details&.find { |detail| detail.is(Google::Rpc::ErrorInfo) }&.unpack(Google::Rpc::ErrorInfo)
  abort "#{e.code} #{info&.reason}: #{e.details}"
end
