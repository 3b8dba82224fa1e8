//! Streams an answer from Baton: target/debug/client 127.0.0.1:8001 'What is 12 + 30?'
use std::{env, error::Error, fs, io::Write, time::Duration};
use tonic::transport::{Certificate, Channel, ClientTlsConfig};
use v1::{generate_request::Input, generation_service_client::GenerationServiceClient};

mod v1 {
    tonic::include_proto!("baton.v1");
}

async fn connect(address: &str) -> Result<Channel, Box<dyn Error>> {
    let Ok(authority) = env::var("BATON_CA") else {
        return Ok(Channel::from_shared(format!("http://{address}"))?.connect().await?);
    };
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(fs::read(authority)?));
    Ok(Channel::from_shared(format!("https://{address}"))?.tls_config(tls)?.connect().await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().collect();
    let mut client = GenerationServiceClient::new(connect(&arguments[1]).await?);
    let turn = v1::ChatMessage { role: "user".into(), content: arguments[2].clone(), ..Default::default() };
    let mut request = tonic::Request::new(v1::GenerateRequest {
        input: Some(Input::Conversation(v1::Conversation { messages: vec![turn], ..Default::default() })),
        sampling: Some(v1::SamplingParameters {
            temperature: Some(0.0),
            max_token_count: Some(256),
            ..Default::default()
        }),
        ..Default::default()
    });
    request.set_timeout(Duration::from_secs(60));
    if let Ok(key) = env::var("BATON_KEY") {
        request.metadata_mut().insert("authorization", format!("Bearer {key}").parse()?);
    }
    let mut parts = client.generate(request).await?.into_inner();
    while let Some(part) = parts.message().await? {
        print!("{}", part.text);
        std::io::stdout().flush()?;
        if let Some(usage) = part.finished.and_then(|end| end.usage) {
            eprintln!("\n{} tokens", usage.completion_token_count);
        }
    }
    Ok(())
}
