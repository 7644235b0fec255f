//! Servers of unknown providers, which only their connectors describe.

use volley_types::registry::{ConnectorSpec, ProviderName};
use volley_types::{ErrorCode, FinishReason, ParamValue, Parameters};

use crate::server::{Act, Read, config, connector, head, load, open, read, serve};

fn with(url: &str, template: Option<&str>, parameters: &[(&str, &str)]) -> ConnectorSpec {
    let pairs = parameters
        .iter()
        .map(|(name, text)| ((*name).to_owned(), ParamValue::Text((*text).to_owned())));
    ConnectorSpec {
        request_body: template.map(str::to_owned),
        parameters: pairs.collect::<Parameters>(),
        ..connector(url, ProviderName::from_static("http"))
    }
}

const TEMPLATE: &str = r#"{"q":"${parameters.prompt}"}"#;

async fn answer(parameters: &[(&str, &str)], status: &str, media: &str, body: &str) -> Read {
    let bytes = [head(status, media), body.as_bytes().to_vec()].concat();
    let server = serve(vec![Act::Send(bytes)]).await;
    let spec = with(&server.url, Some(TEMPLATE), parameters);
    let model = load(spec, config()).await.unwrap();
    read(open(&model, &[]).await).await
}

#[tokio::test]
async fn one_path_is_enough_for_json_lines_and_events() {
    let filter = [("response_filter", "$.generated[0].text")];
    let event = r#"{"generated":[{"text":"hello"}]}"#;
    let length = |body: &str| format!("200 OK\r\ncontent-length: {}", body.len());
    for (media, body) in [
        ("application/json", event.to_owned()),
        ("application/x-ndjson", format!("{event}\n{event}\n")),
        (
            "text/event-stream",
            format!("data: {event}\n\ndata: {event}\n\n"),
        ),
    ] {
        let whole = answer(&filter, &length(&body), media, &body).await;
        assert!(whole.text.starts_with("hello"), "{media}: {whole:?}");
        assert_eq!(whole.finish, Some(FinishReason::Stop));
        if media != "application/json" {
            // Only HTTP marks the end. Without a length, an aborted body looks the same.
            let open_ended = answer(&filter, "200 OK", media, &body).await;
            let code = open_ended.error.map(|error| error.code);
            assert_eq!(code, Some(ErrorCode::UpstreamIncomplete));
        }
    }
}

#[tokio::test]
async fn a_format_may_be_told_and_a_terminator_too() {
    let response = r#"{"text":"$.t","terminator":"END","format":"sse"}"#;
    let parameters = [("response", response)];
    let body = "data: {\"t\":\"a\"}\n\ndata: {\"t\":7}\n\ndata: END\n\n";
    let read = answer(&parameters, "200 OK", "text/plain", body).await;
    assert_eq!(read.text, "a7", "{read:?}");
    let cut = body.replace("END", "{}");
    let read = answer(&parameters, "200 OK", "text/plain", &cut).await;
    let code = read.error.map(|error| error.code);
    assert_eq!(code, Some(ErrorCode::UpstreamIncomplete));
}

#[tokio::test]
async fn a_path_that_leads_nowhere_is_an_error_and_no_empty_answer() {
    let filter = [("response_filter", "$.elsewhere")];
    for (media, body) in [
        ("application/json", "{\"t\":\"a\"}"),
        ("application/x-ndjson", "{\"t\":\"a\"}\n"),
    ] {
        let status = format!("200 OK\r\ncontent-length: {}", body.len());
        let error = answer(&filter, &status, media, body).await.error.unwrap();
        assert_eq!(error.code, ErrorCode::UpstreamFailed);
        assert!(error.message.contains("response paths"), "{error:?}");
    }
}

#[tokio::test]
async fn a_connector_that_says_too_little_does_not_load() {
    let url = "http://127.0.0.1:1/infer";
    let filter = [("response_filter", "$.t")];
    for (template, parameters, says) in [
        (None, filter.as_slice(), "'request_body'"),
        (Some(TEMPLATE), &[], "'response_filter'"),
        (
            Some(TEMPLATE),
            &[("response_filter", "$.t[")],
            "'response_filter'",
        ),
    ] {
        let spec = with(url, template, parameters);
        let error = load(spec, config()).await.err().unwrap();
        assert_eq!(error.code, ErrorCode::InvalidInput);
        assert!(error.message.contains(says), "{error:?}");
    }
}
