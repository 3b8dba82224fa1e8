# Twenty checks of baton.v1 from Ruby: ruby -I. checks.rb NAME ...; a line of JSON for each. See ../python/checks.py.
require 'json'
require 'baton/v1/generation_service_services_pb'
require 'google/protobuf/well_known_types'
require 'google/rpc/error_details_pb'

include Baton::V1

ADDRESS, MODEL = ENV.values_at('BATON_GRPC', 'BATON_MODEL')
SERVICE = 'baton.v1.GenerationService'.freeze
QUESTION = 'What is 12 + 30?'.freeze
ANSWER = '12 + 30 = 42'.freeze
SUM = { type: 'object', properties: { answer: { type: 'integer' } }, required: ['answer'],
        additionalProperties: false }.to_json
WEATHER = { type: 'object', properties: { city: { enum: %w[Paris Oslo] } }, required: ['city'],
            additionalProperties: false }.to_json
INSECURE = :this_channel_is_insecure
BARE = GRPC::ClientStub.new(ADDRESS, INSECURE) # bytes in, bytes out: health and reflection need no generated code
BYTES = ->(data) { data }
STUB = GenerationService::Stub.new(ADDRESS, INSECURE)

def expect(actual, expected)
  raise "expected #{expected.inspect}, got #{actual.inspect}" unless actual == expected
end

def chat(*turns, **conversation)
  turns = [{ role: 'user', content: QUESTION }] if turns.empty?
  Conversation.new(messages: turns.map { |turn| ChatMessage.new(**turn) }, **conversation)
end

def ask(limit = 64, sampling: {}, **fields)
  fields = { conversation: chat, **fields } unless fields.keys.intersect?(%i[text tokens conversation])
  chosen = SamplingParameters.new(temperature: 0, max_token_count: limit, **sampling)
  GenerateRequest.new(model: MODEL, sampling: chosen, **fields)
end

def endless(limit = 3000)
  ask(limit, sampling: { ignore_eos: true })
end

def generate(request, stub: STUB, **options)
  stub.generate(request, **options).to_a
end

def text_of(parts)
  parts.map(&:text).join
end

def num_tokens(parts)
  parts.sum { |part| part.token_ids.size }
end

def called
  tool = Tool.new(name: 'get_weather', description: 'Tells the weather.', parameters: WEATHER)
  choice = ToolChoice.new(name: 'get_weather')
  parts = generate(ask(300, conversation: chat(tools: [tool], tool_choice: choice)))
  deltas = parts.flat_map { |part| part.tool_calls.to_a }
  expect(parts.last.finished.reason, :FINISH_REASON_TOOL_CALLS)
  ToolCall.new(id: deltas.first.id, name: deltas.first.name, arguments: deltas.map(&:arguments).join)
end

# The code of a call that fails, and the reason and the field of its details.
def failure
  yield
  raise 'it was not refused'
rescue GRPC::BadStatus => e
  details = (e.to_rpc_status&.details || []).to_h { |detail| [detail.type_url.split('/').last, detail] }
  info = details['google.rpc.ErrorInfo']&.unpack(Google::Rpc::ErrorInfo)
  fields = details['google.rpc.BadRequest']&.unpack(Google::Rpc::BadRequest)
  [e.class.name.split('::').last, info&.reason, fields && fields.field_violations.first.field].compact
end

CHECKS = {
  models: lambda {
    listed = STUB.list_models(ListModelsRequest.new).models
    expect(listed.map(&:name), [MODEL])
    expect(listed.first.max_context_token_count.positive?, true)
  },
  conversation: -> { expect(text_of(generate(ask)), ANSWER) },
  text: lambda {
    parts = generate(ask(8, text: 'What is', sampling: { ignore_eos: true }))
    expect(parts.last.finished.usage.completion_token_count, 8)
  },
  tokens: lambda {
    ids = STUB.tokenize(TokenizeRequest.new(text: 'What is')).token_ids
    given = generate(ask(8, tokens: TokenSequence.new(token_ids: ids.to_a)))
    expect(text_of(given), text_of(generate(ask(8, text: 'What is'))))
  },
  stream: -> { expect(generate(endless(48)).size > 8, true) },
  usage: lambda {
    parts = generate(ask)
    finished = parts.last.finished
    expect(finished.usage.completion_token_count, num_tokens(parts))
    expect(finished.usage.prompt_token_count.positive?, true)
    expect(finished.reason, :FINISH_REASON_STOP)
    expect(finished.placement.decode_node_id.empty?, false)
  },
  logprobs: lambda {
    parts = generate(ask(sampling: { top_logprob_count: 2 }))
    entries = parts.flat_map { |part| part.logprobs.to_a }
    expect(entries.size, parts.last.finished.usage.completion_token_count)
    expect(entries.map { |entry| entry.alternatives.size }.uniq, [2])
    expect(entries[0...-1].map(&:text).join, ANSWER)
  },
  stop: lambda {
    parts = generate(ask(stop: ['=']))
    expect([text_of(parts), parts.last.finished.stop], ['12 + 30 ', '='])
    expect(parts.last.finished.usage.completion_token_count, num_tokens(parts))
  },
  structured: lambda {
    form = StructuredOutput.new(json_schema: SUM)
    expect(JSON.parse(text_of(generate(ask(300, sampling: { structured_output: form })))).keys, ['answer'])
  },
  tools: lambda {
    call = called
    expect(call.name, 'get_weather')
    expect(%w[Paris Oslo].include?(JSON.parse(call.arguments)['city']), true)
  },
  loop: lambda {
    call = called
    turns = [{ role: 'user', content: QUESTION }, { role: 'assistant', tool_calls: [call] },
             { role: 'tool', tool_call_id: call.id, content: 'sunny' }]
    parts = generate(ask(conversation: chat(*turns)))
    expect(parts.last.finished.usage.completion_token_count.positive?, true)
    expect(parts.sum { |part| part.tool_calls.size }, 0)
  },
  errors: lambda {
    refused = failure { generate(ask(sampling: { temperature: -1 })) }
    expect(refused, %w[InvalidArgument INVALID_FIELD sampling.temperature])
    unknown = ask
    unknown.model = 'gpt'
    expect(failure { generate(unknown) }.first(2), %w[NotFound MODEL_NOT_FOUND])
  },
  deadline: lambda {
    started = Time.now
    expect(failure { generate(endless, deadline: Time.now + 0.3) }.first, 'DeadlineExceeded')
    expect(Time.now - started < 3, true)
  },
  cancel: lambda {
    operation = STUB.generate(endless, return_op: true)
    parts = operation.execute
    4.times { parts.next }
    operation.cancel
    expect(failure { loop { parts.next } }.first, 'Cancelled')
  },
  streams: lambda {
    texts = Array.new(50) { Thread.new { text_of(generate(ask(16))) } }.map(&:value)
    expect(texts.uniq, [ANSWER])
  },
  health: lambda {
    told = BARE.request_response('/grpc.health.v1.Health/Check', "\x0a#{SERVICE.size.chr}#{SERVICE}", BYTES, BYTES)
    expect(told, "\x08\x01") # SERVING
  },
  reflection: lambda {
    method = '/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo'
    told = BARE.bidi_streamer(method, ["\x3a\x00"], BYTES, BYTES).first
    expect(told.include?(SERVICE), true)
  },
  tls_key: lambda {
    authority = GRPC::Core::ChannelCredentials.new(File.read(ENV.fetch('BATON_CA')))
    stub = GenerationService::Stub.new(ENV.fetch('BATON_GRPC_TLS'), authority)
    known = { 'authorization' => "Bearer #{ENV.fetch('BATON_KEY')}" }
    expect(text_of(generate(ask, stub: stub, metadata: known)), ANSWER)
    expect(failure { generate(ask, stub: stub) }, %w[Unauthenticated INVALID_API_KEY])
  },
  keepalive: lambda {
    pings = { 'grpc.keepalive_time_ms' => 1000, 'grpc.keepalive_permit_without_calls' => 1 }
    stub = GenerationService::Stub.new(ADDRESS, INSECURE, channel_args: pings)
    expect(text_of(generate(ask, stub: stub)), ANSWER)
    sleep 4 # pings go out meanwhile
    expect(text_of(generate(ask, stub: stub)), ANSWER)
  },
  request_id: lambda {
    operation = STUB.generate(ask, metadata: { 'x-request-id' => 'ruby-1' }, return_op: true)
    parts = operation.execute.to_a
    expect(operation.metadata['x-request-id'], 'ruby-1')
    expect(parts.last.finished.request_id, 'ruby-1')
  }
}.freeze

ARGV.each do |name|
  started = Time.now
  line = { feature: name }
  begin
    CHECKS.fetch(name.to_sym).call
  rescue StandardError => e
    line[:error] = "#{e.class}: #{e.message}"[0, 400]
  end
  puts JSON.generate(line.merge(seconds: (Time.now - started).round(2)))
  $stdout.flush
end
