//! Twenty checks of baton.v1 from Rust: target/debug/checks NAME ...; a line of JSON for each. See ../python/checks.py.
use std::{env, error::Error, fs, time::{Duration, Instant}};
use tokio_stream::StreamExt;
use tonic::transport::{Certificate, Channel, ClientTlsConfig};
use tonic::{Request, Status};
use tonic_health::pb::{health_check_response::ServingStatus, health_client::HealthClient, HealthCheckRequest};
use tonic_reflection::pb::v1alpha as reflection;
use tonic_types::StatusExt;
use v1::{generate_request::Input, generation_service_client::GenerationServiceClient};

mod v1 {
    tonic::include_proto!("baton.v1");
}

const SERVICE: &str = "baton.v1.GenerationService";
const QUESTION: &str = "What is 12 + 30?";
const ANSWER: &str = "12 + 30 = 42";
const SUM: &str =
    r#"{"type":"object","properties":{"answer":{"type":"integer"}},"required":["answer"],"additionalProperties":false}"#;
const WEATHER: &str = r#"{"type":"object","properties":{"city":{"enum":["Paris","Oslo"]}},"required":["city"],"additionalProperties":false}"#;

type Outcome = Result<(), Box<dyn Error>>;
type Client = GenerationServiceClient<Channel>;

/// What a stream brought.
#[derive(Default)]
struct Output {
    text: String,
    num_parts: usize,
    tokens: Vec<i32>,
    logprobs: Vec<v1::TokenLogprob>,
    calls: Vec<v1::ToolCallDelta>,
    end: v1::GenerationEnd,
    request_id: String,
}

fn turn(role: &str, content: &str) -> v1::ChatMessage {
    v1::ChatMessage { role: role.into(), content: content.into(), ..Default::default() }
}

fn chat(messages: Vec<v1::ChatMessage>) -> Input {
    Input::Conversation(v1::Conversation { messages, ..Default::default() })
}

fn asked(limit: i32, input: Input, change: impl FnOnce(&mut v1::SamplingParameters)) -> v1::GenerateRequest {
    let (temperature, max_token_count) = (Some(0.0), Some(limit));
    let mut sampling = v1::SamplingParameters { temperature, max_token_count, ..Default::default() };
    change(&mut sampling);
    let model = env::var("BATON_MODEL").unwrap();
    v1::GenerateRequest { model, input: Some(input), sampling: Some(sampling), ..Default::default() }
}

fn ask(limit: i32) -> v1::GenerateRequest {
    asked(limit, chat(vec![turn("user", QUESTION)]), |_| ())
}

fn endless(limit: i32) -> v1::GenerateRequest {
    asked(limit, chat(vec![turn("user", QUESTION)]), |sampling| sampling.ignore_eos = true)
}

async fn generate(client: &Client, request: impl tonic::IntoRequest<v1::GenerateRequest>) -> Result<Output, Status> {
    let response = client.clone().generate(request).await?;
    let named = response.metadata().get("x-request-id");
    let request_id = named.map(|id| id.to_str().unwrap().to_owned()).unwrap_or_default();
    let mut output = Output { request_id, ..Default::default() };
    let mut parts = response.into_inner();
    while let Some(part) = parts.next().await {
        let part = part?;
        output.num_parts += 1;
        output.text += &part.text;
        output.tokens.extend(part.token_ids);
        output.logprobs.extend(part.logprobs);
        output.calls.extend(part.tool_calls);
        output.end = part.finished.unwrap_or_default();
    }
    Ok(output)
}

async fn call(client: &Client) -> Result<v1::ToolCall, Box<dyn Error>> {
    let (name, description) = ("get_weather".to_owned(), "Tells the weather.".to_owned());
    let tool = v1::Tool { name: name.clone(), description, parameters: WEATHER.into(), ..Default::default() };
    let choice = v1::ToolChoice { choice: Some(v1::tool_choice::Choice::Name(name)) };
    let conversation = v1::Conversation {
        messages: vec![turn("user", QUESTION)],
        tools: vec![tool],
        tool_choice: Some(choice),
        ..Default::default()
    };
    let output = generate(client, asked(300, Input::Conversation(conversation), |_| ())).await?;
    expect(output.end.reason(), v1::FinishReason::ToolCalls)?;
    let first = &output.calls[0];
    let arguments = output.calls.iter().map(|delta| delta.arguments.as_str()).collect();
    Ok(v1::ToolCall { id: first.id.clone(), name: first.name.clone(), arguments })
}

/// The code of a call that fails, and the reason and the field of its details.
fn failure(result: Result<Output, Status>) -> String {
    let Err(status) = result else { return "it was not refused".into() };
    let reason = status.get_details_error_info().map(|info| info.reason).unwrap_or_default();
    let fields = status.get_details_bad_request().map(|wrong| wrong.field_violations).unwrap_or_default();
    let field = fields.first().map(|violation| violation.field.clone()).unwrap_or_default();
    format!("{:?} {reason} {field}", status.code()).trim_end().to_owned()
}

fn expect<T: PartialEq + std::fmt::Debug>(actual: T, expected: T) -> Outcome {
    if actual == expected { Ok(()) } else { Err(format!("expected {expected:?}, got {actual:?}").into()) }
}

async fn plain() -> Result<Channel, Box<dyn Error>> {
    Ok(Channel::from_shared(format!("http://{}", env::var("BATON_GRPC")?))?.connect().await?)
}

async fn tls_key() -> Outcome {
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(fs::read(env::var("BATON_CA")?)?));
    let address = format!("https://{}", env::var("BATON_GRPC_TLS")?);
    let client = Client::new(Channel::from_shared(address)?.tls_config(tls)?.connect().await?);
    let mut known = Request::new(ask(64));
    known.metadata_mut().insert("authorization", format!("Bearer {}", env::var("BATON_KEY")?).parse()?);
    expect(generate(&client, known).await?.text.as_str(), ANSWER)?;
    expect(failure(generate(&client, ask(64)).await).as_str(), "Unauthenticated INVALID_API_KEY")
}

async fn keepalive() -> Outcome {
    let endpoint = Channel::from_shared(format!("http://{}", env::var("BATON_GRPC")?))?;
    let pinging = endpoint.http2_keep_alive_interval(Duration::from_secs(1)).keep_alive_while_idle(true);
    let client = Client::new(pinging.connect().await?);
    expect(generate(&client, ask(64)).await?.text.as_str(), ANSWER)?;
    tokio::time::sleep(Duration::from_secs(4)).await; // pings go out meanwhile
    expect(generate(&client, ask(64)).await?.text.as_str(), ANSWER)
}

async fn reflected(channel: Channel) -> Outcome {
    let list = reflection::server_reflection_request::MessageRequest::ListServices(String::new());
    let asked = reflection::ServerReflectionRequest { message_request: Some(list), ..Default::default() };
    let mut client = reflection::server_reflection_client::ServerReflectionClient::new(channel);
    let mut told = client.server_reflection_info(tokio_stream::once(asked)).await?.into_inner();
    expect(format!("{:?}", told.message().await?).contains(SERVICE), true)
}

async fn check(name: &str) -> Outcome {
    let channel = plain().await?;
    let client = Client::new(channel.clone());
    match name {
        "models" => {
            let models = client.clone().list_models(v1::ListModelsRequest {}).await?.into_inner().models;
            expect((models[0].name.clone(), models[0].max_context_token_count > 0), (env::var("BATON_MODEL")?, true))
        }
        "conversation" => expect(generate(&client, ask(64)).await?.text.as_str(), ANSWER),
        "text" => {
            let request = asked(8, Input::Text("What is".into()), |sampling| sampling.ignore_eos = true);
            expect(generate(&client, request).await?.end.usage.unwrap_or_default().completion_token_count, 8)
        }
        "tokens" => {
            let input = v1::tokenize_request::Input::Text("What is".into());
            let request = v1::TokenizeRequest { input: Some(input), ..Default::default() };
            let token_ids = client.clone().tokenize(request).await?.into_inner().token_ids;
            let given = generate(&client, asked(8, Input::Tokens(v1::TokenSequence { token_ids }), |_| ())).await?;
            expect(given.text, generate(&client, asked(8, Input::Text("What is".into()), |_| ())).await?.text)
        }
        "stream" => expect(generate(&client, endless(48)).await?.num_parts > 8, true),
        "usage" => {
            let output = generate(&client, ask(64)).await?;
            let usage = output.end.usage.unwrap_or_default();
            expect((usage.completion_token_count as usize, usage.prompt_token_count > 0), (output.tokens.len(), true))?;
            expect(output.end.reason(), v1::FinishReason::Stop)?;
            expect(output.end.placement.unwrap_or_default().decode_node_id.is_empty(), false)
        }
        "logprobs" => {
            let input = chat(vec![turn("user", QUESTION)]);
            let output = generate(&client, asked(64, input, |sampling| sampling.top_logprob_count = Some(2))).await?;
            let entries = &output.logprobs[..output.logprobs.len() - 1];
            expect(entries.len() + 1, output.tokens.len())?;
            expect(entries.iter().all(|entry| entry.alternatives.len() == 2), true)?;
            expect(entries.iter().map(|entry| entry.text.as_str()).collect::<String>().as_str(), ANSWER)
        }
        "stop" => {
            let output = generate(&client, v1::GenerateRequest { stop: vec!["=".into()], ..ask(64) }).await?;
            expect((output.text.as_str(), output.end.stop.as_str()), ("12 + 30 ", "="))?;
            expect(output.end.usage.unwrap_or_default().completion_token_count as usize, output.tokens.len())
        }
        "structured" => {
            let constraint = Some(v1::structured_output::Constraint::JsonSchema(SUM.into()));
            let form = Some(v1::StructuredOutput { constraint });
            let input = chat(vec![turn("user", QUESTION)]);
            let text = generate(&client, asked(300, input, |sampling| sampling.structured_output = form)).await?.text;
            let number = text.strip_prefix(r#"{"answer":"#).and_then(|rest| rest.strip_suffix('}'));
            expect(number.unwrap_or_default().trim_start_matches('-').chars().all(|c| c.is_ascii_digit()), true)?;
            expect(number.is_some_and(|digits| !digits.is_empty()), true)
        }
        "tools" => {
            let called = call(&client).await?;
            expect(called.name.as_str(), "get_weather")?;
            expect(called.arguments.contains("Paris") || called.arguments.contains("Oslo"), true)
        }
        "loop" => {
            let called = call(&client).await?;
            let result = v1::ChatMessage { tool_call_id: called.id.clone(), ..turn("tool", "sunny") };
            let calling = v1::ChatMessage { tool_calls: vec![called], ..turn("assistant", "") };
            let request = asked(64, chat(vec![turn("user", QUESTION), calling, result]), |_| ());
            let output = generate(&client, request).await?;
            expect((output.tokens.is_empty(), output.calls.len()), (false, 0))
        }
        "errors" => {
            let wrong = asked(64, chat(vec![turn("user", QUESTION)]), |sampling| sampling.temperature = Some(-1.0));
            let told = failure(generate(&client, wrong).await);
            expect(told.as_str(), "InvalidArgument INVALID_FIELD sampling.temperature")?;
            let told = failure(generate(&client, v1::GenerateRequest { model: "gpt".into(), ..ask(64) }).await);
            expect(told.starts_with("NotFound MODEL_NOT_FOUND"), true)
        }
        "deadline" => {
            let started = Instant::now();
            let mut request = Request::new(endless(3000));
            request.set_timeout(Duration::from_millis(300));
            // tonic says Cancelled where its own clock is first
            let told = failure(generate(&client, request).await);
            expect(told == "DeadlineExceeded" || told == "Cancelled", true)?;
            expect(started.elapsed() < Duration::from_secs(3), true)
        }
        "cancel" => {
            let mut parts = client.clone().generate(endless(3000)).await?.into_inner();
            for _ in 0..4 {
                expect(parts.message().await?.is_some(), true)?;
            }
            drop(parts); // which is how a call is cancelled
            expect(generate(&client, ask(64)).await?.text.as_str(), ANSWER)
        }
        "streams" => {
            let mut running = tokio::task::JoinSet::new();
            for _ in 0..50 {
                let client = client.clone();
                running.spawn(async move { generate(&client, ask(16)).await });
            }
            while let Some(output) = running.join_next().await {
                expect(output??.text.as_str(), ANSWER)?;
            }
            Ok(())
        }
        "health" => {
            let request = HealthCheckRequest { service: SERVICE.into() };
            let told = HealthClient::new(channel).check(request).await?.into_inner();
            expect(told.status(), ServingStatus::Serving)
        }
        "reflection" => reflected(channel).await,
        "tls_key" => tls_key().await,
        "keepalive" => keepalive().await,
        "request_id" => {
            let mut request = Request::new(ask(64));
            request.metadata_mut().insert("x-request-id", "rust-1".parse()?);
            let output = generate(&client, request).await?;
            expect((output.request_id.as_str(), output.end.request_id.as_str()), ("rust-1", "rust-1"))
        }
        _ => Err("no such check".into()),
    }
}

#[tokio::main]
async fn main() {
    for name in env::args().skip(1) {
        let started = Instant::now();
        let wrong = check(&name).await.err().map(|error| error.to_string()).unwrap_or_default();
        let seconds = started.elapsed().as_secs_f64();
        println!(r#"{{"feature": {name:?}, "error": {wrong:?}, "seconds": {seconds:.2}}}"#);
    }
}
