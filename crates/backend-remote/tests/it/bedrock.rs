//! Amazon Bedrock, with a server that checks signatures like the service.

use ring::{digest, hmac};
use volley_types::registry::{ConnectorSpec, ProviderName};
use volley_types::{ErrorCode, FinishReason, ParamValue};

use crate::server::{Act, config, connector, frames, head, key_file, load, open, read, serve};

const ACCESS: &str = "AKIDEXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const PATH: &str = "/model/acme.x-v1:0/converse-stream";
const TEXT: &str = include_str!("../fixtures/bedrock/text.frames");

fn hex(bytes: impl AsRef<[u8]>) -> String {
    let bytes = bytes.as_ref().iter();
    bytes.map(|byte| format!("{byte:02x}")).collect()
}

fn sha256(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes))
}

/// The signature of a canonical request, from the description of Signature Version 4.
fn signature(canonical: &str, date: &str, scope: &str) -> String {
    let sign = |key: &[u8], text: &str| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, key);
        hmac::sign(&key, text.as_bytes())
    };
    let mut key = sign(format!("AWS4{SECRET}").as_bytes(), &date[..8]);
    for part in scope.split('/').skip(1) {
        key = sign(key.as_ref(), part);
    }
    let text = format!(
        "AWS4-HMAC-SHA256\n{date}\n{scope}\n{}",
        sha256(canonical.as_bytes())
    );
    hex(sign(key.as_ref(), &text))
}

/// Escapes a path once more, except unreserved characters and slashes.
fn escaped(path: &str) -> String {
    let escape = |byte: u8| match byte {
        b'/' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    path.bytes().map(escape).collect()
}

/// Checks a request like the service, and returns the scope of its credential.
fn checked(request: &str) -> String {
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let path = lines.next().unwrap().split(' ').nth(1).unwrap();
    let headers: Vec<_> = lines.map(|line| line.split_once(": ").unwrap()).collect();
    let header = |name: &str| {
        let found = headers.iter().find(|(given, _)| *given == name);
        found.unwrap_or_else(|| panic!("no {name}: {head}")).1
    };
    let given = header("authorization");
    let given = given.strip_prefix("AWS4-HMAC-SHA256 ").unwrap();
    let part = |name: &str| {
        let mut parts = given.split(", ");
        parts.find_map(|part| part.strip_prefix(name)).unwrap()
    };
    let (access, scope) = part("Credential=").split_once('/').unwrap();
    assert_eq!(access, ACCESS);
    let names = part("SignedHeaders=");
    let signed: Vec<_> = names.split(';').collect();
    for name in ["host", "content-type", "x-amz-date", "x-amz-content-sha256"] {
        assert!(signed.contains(&name), "{names}");
    }
    let lines = signed
        .iter()
        .map(|name| format!("{name}:{}\n", header(name)));
    let hash = sha256(body.as_bytes());
    assert_eq!(header("x-amz-content-sha256"), hash);
    let canonical = format!(
        "POST\n{}\n\n{}\n{names}\n{hash}",
        escaped(path),
        lines.collect::<String>()
    );
    let expected = signature(&canonical, header("x-amz-date"), scope);
    assert_eq!(part("Signature="), expected, "{canonical}");
    scope.to_owned()
}

fn spec(base: &str, path: &str, keys: &str) -> ConnectorSpec {
    let url = base.replace("/v1/chat/completions", path);
    let mut spec = connector(&url, ProviderName::from_static("bedrock"));
    spec.credential = Some(key_file(keys));
    // As in OpenSearch's blueprints.
    spec.headers
        .insert("x-amz-content-sha256".to_owned(), "required".to_owned());
    spec
}

fn stream(body: &[u8]) -> Vec<u8> {
    [
        head("200 OK", "application/vnd.amazon.eventstream"),
        body.to_vec(),
    ]
    .concat()
}

#[test]
fn the_check_of_signatures_agrees_with_the_published_example() {
    let canonical = "GET\n/\n\nhost:example.amazonaws.com\nx-amz-date:20150830T123600Z\n\n\
                     host;x-amz-date\n\
                     e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let scope = "20150830/us-east-1/service/aws4_request";
    assert_eq!(
        signature(canonical, "20150830T123600Z", scope),
        "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
    );
}

#[tokio::test]
async fn requests_are_signed_and_keys_are_not_sent() {
    for (token, keys) in [
        (None, format!("{ACCESS}:{SECRET}")),
        (
            Some("a+temporary/token="),
            format!(
                "[default]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\n\
                 aws_session_token = a+temporary/token=\n"
            ),
        ),
    ] {
        let mut server = serve(vec![Act::Send(stream(&frames(TEXT)))]).await;
        let mut spec = spec(&server.url, PATH, &keys);
        let region = ParamValue::Text("eu-west-1".to_owned());
        spec.parameters = [("region".to_owned(), region)].into_iter().collect();
        let model = load(spec, config()).await.unwrap();
        let answer = read(open(&model, &[]).await).await;
        assert_eq!(answer.text, "Grüße, Fuchs 🦊", "{answer:?}");
        let request = server.requests.recv().await.unwrap();
        let scope = checked(&request);
        assert!(
            scope.ends_with("/eu-west-1/bedrock/aws4_request"),
            "{scope}"
        );
        assert!(!request.contains(SECRET));
        assert!(!request.contains("region\""), "it is no part of the body");
        let sent = token.map(|token| format!("x-amz-security-token: {token}"));
        assert!(sent.is_none_or(|line| request.contains(&line)), "{request}");
    }
}

#[tokio::test]
async fn without_a_region_a_replica_does_not_load() {
    let spec = spec("http://127.0.0.1:1/v1/chat/completions", PATH, "a:b");
    let mut nowhere = spec.clone();
    nowhere.parameters.remove("region");
    let error = load(nowhere, config()).await.err().unwrap();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    assert!(error.message.contains("'region'"), "{error:?}");
}

#[tokio::test]
async fn a_damaged_frame_is_an_error_after_what_was_whole() {
    let good = frames(TEXT);
    let (whole, last) = (
        frames(TEXT.rsplit_once("metadata").unwrap().0),
        good.len() - 1,
    );
    for at in [whole.len() + 20, last] {
        let mut bad = good.clone();
        bad[at] ^= 0x20;
        for act in [Act::Send(stream(&bad)), Act::Drip(stream(&bad))] {
            let server = serve(vec![act]).await;
            let spec = spec(&server.url, PATH, "a:b");
            let model = load(spec, config()).await.unwrap();
            let answer = read(open(&model, &[]).await).await;
            assert_eq!(answer.text, "Grüße, Fuchs 🦊");
            let error = answer.error.unwrap();
            assert_eq!(error.code, ErrorCode::UpstreamFailed);
            assert!(error.message.contains("damaged"), "{error:?}");
        }
    }
}

#[tokio::test]
async fn an_answer_that_is_not_streamed_is_read_whole() {
    let mut answer = head("200 OK", "application/json");
    answer.extend_from_slice(include_bytes!("../fixtures/bedrock/whole.json"));
    let mut server = serve(vec![Act::Send(answer)]).await;
    let path = "/model/acme.x-v1:0/converse";
    let spec = spec(&server.url, path, "a:b");
    let answer = read(open(&load(spec, config()).await.unwrap(), &[]).await).await;
    assert_eq!(answer.finish, Some(FinishReason::ToolCalls), "{answer:?}");
    let request = server.requests.recv().await.unwrap();
    assert!(request.starts_with(&format!("POST {path} HTTP/1.1\r\n")));
}

#[tokio::test]
async fn the_service_refuses_in_its_own_words() {
    for (status, body, code, says) in [
        (
            "400 Bad Request\r\nx-amzn-errortype: ValidationException",
            r#"{"message":"Malformed input request"}"#,
            ErrorCode::InvalidInput,
            "Malformed input",
        ),
        (
            "403 Forbidden\r\nx-amzn-errortype: InvalidSignatureException",
            r#"{"message":"The signature canary-secret does not match"}"#,
            ErrorCode::UpstreamFailed,
            "credential",
        ),
        (
            "429 Too Many Requests\r\nx-amzn-errortype: ThrottlingException",
            r#"{"message":"Too many requests"}"#,
            ErrorCode::Overloaded,
            "Too many",
        ),
        (
            "404 Not Found\r\nx-amzn-errortype: ResourceNotFoundException",
            r#"{"Message":"Model a:canary-secret is not there"}"#,
            ErrorCode::UpstreamFailed,
            "[redacted] is not there",
        ),
    ] {
        let mut answer = head(status, "application/json");
        answer.extend_from_slice(body.as_bytes());
        let server = serve(vec![Act::Send(answer)]).await;
        let spec = spec(&server.url, PATH, "a:canary-secret");
        let model = load(spec, config()).await.unwrap();
        let error = read(open(&model, &[]).await).await.error.unwrap();
        assert_eq!(error.code, code, "{error:?}");
        assert!(error.message.contains(says), "{error:?}");
        assert!(!error.message.contains("canary"), "{error:?}");
    }
}
