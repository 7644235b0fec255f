//! HTTP by hand, for what a good client would not send.

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::PATIENCE;

/// A POST of JSON.
#[must_use]
pub fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: volley\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Sends bytes and reads the whole answer: its status, and its body as it is.
///
/// # Panics
/// When no answer comes within [`PATIENCE`].
pub async fn exchange(address: &str, request: &str) -> (u16, String) {
    let answer = tokio::time::timeout(PATIENCE, async {
        let mut socket = TcpStream::connect(address).await.expect("a connection");
        // A server that refuses early may close before everything is sent.
        let _ = socket.write_all(request.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    });
    let answer = answer.await.expect("an answer in time");
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let body = answer
        .split_once("\r\n\r\n")
        .map_or(String::new(), |(_, body)| body.to_owned());
    (status.unwrap_or(0), body)
}

/// The error code in a body, wherever chunked encoding put it.
#[must_use]
pub fn code(body: &str) -> String {
    let json = body
        .find('{')
        .zip(body.rfind('}'))
        .map(|(from, to)| &body[from..=to]);
    let body: Value = json
        .and_then(|json| serde_json::from_str(json).ok())
        .unwrap_or_default();
    let code = body["error"]["code"].as_str().or(body["code"].as_str());
    code.unwrap_or_default().to_owned()
}
