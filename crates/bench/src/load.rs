//! The load generator. It opens streams over plain HTTP/1.1, with one connection per stream as most
//! SDKs do. It reads events with minimal work, so that it does not dominate the measurement.

use std::time::Duration;

use anyhow::{Context, bail};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use crate::standin::unix_nanos;

/// The request that opens a stream.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// `host:port`.
    pub(crate) address: String,
    /// Path and query.
    pub(crate) path: String,
    /// The JSON body.
    pub(crate) body: String,
    /// The form of the terminal event.
    pub(crate) dialect: EventDialect,
}

/// The dialect of the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventDialect {
    /// `[DONE]` ends the stream.
    OpenAi,
    /// `"is_last":true` ends the stream.
    OpenSearch,
}

/// One open stream.
pub(crate) struct Stream {
    body: Incoming,
    buffer: BytesMut,
    dialect: EventDialect,
    ended: bool,
    opened_ns: u64,
    _connection: AbortOnDropHandle<()>,
}

impl Target {
    /// Connects, sends the request and waits for a 200.
    pub(crate) async fn open(&self) -> anyhow::Result<Stream> {
        let opened_ns = unix_nanos();
        let socket = TcpStream::connect(&self.address)
            .await
            .context("connecting")?;
        socket.set_nodelay(true)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
        let connection = AbortOnDropHandle::new(tokio::spawn(async move {
            // A failed connection shows up as a failed body.
            let _ = connection.await;
        }));
        let request = Request::post(&self.path)
            .header("host", &self.address)
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(self.body.clone())))?;
        let response = sender
            .send_request(request)
            .await
            .context("sending the request")?;
        let status = response.status();
        if status != 200 {
            let body = response.into_body().collect().await?.to_bytes();
            bail!("status {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(Stream {
            body: response.into_body(),
            buffer: BytesMut::new(),
            dialect: self.dialect,
            ended: false,
            opened_ns,
            _connection: connection,
        })
    }
}

/// The result of one complete stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamResult {
    /// Content events.
    pub(crate) chunks: u32,
    /// All content.
    pub(crate) text: String,
    /// From the start of connecting to the first content event, in nanoseconds.
    pub(crate) first_ns: u64,
    /// Time from sending to reading of each stamped chunk, in nanoseconds.
    pub(crate) latency_ns: Vec<u64>,
    /// Whether stamped chunks arrived in order and without gaps.
    pub(crate) in_order: bool,
}

impl Stream {
    /// The next content, with the escapes of the stand-in resolved; `None` at the end.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<String>> {
        loop {
            while let Some(event) = self.take_event() {
                let done = match self.dialect {
                    EventDialect::OpenAi => event.as_ref() == b"data: [DONE]",
                    EventDialect::OpenSearch => {
                        memchr::memmem::find(&event, b"\"is_last\":true").is_some()
                    }
                };
                let content = content(&event)?;
                if done {
                    self.ended = true;
                    return Ok(content.filter(|text| !text.is_empty()));
                }
                if let Some(content) = content.filter(|text| !text.is_empty()) {
                    return Ok(Some(content));
                }
            }
            match self
                .body
                .frame()
                .await
                .transpose()
                .context("reading the stream")?
            {
                Some(frame) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                None if self.ended => return Ok(None),
                None => bail!("the stream ended without its last event"),
            }
        }
    }

    fn take_event(&mut self) -> Option<BytesMut> {
        let end = memchr::memmem::find(&self.buffer, b"\n\n")?;
        let mut event = self.buffer.split_to(end + 2);
        event.truncate(end);
        Some(event)
    }

    /// Reads the stream to its end.
    pub(crate) async fn finish(mut self) -> anyhow::Result<StreamResult> {
        let mut outcome = StreamResult {
            in_order: true,
            ..StreamResult::default()
        };
        while let Some(text) = self.next().await? {
            let now = unix_nanos();
            if outcome.chunks == 0 {
                outcome.first_ns = now.saturating_sub(self.opened_ns);
            }
            if !text.contains('@') {
                outcome.chunks += 1;
                outcome.text.push_str(&text);
                continue;
            }
            // Chunks that were sent in quick succession may arrive as one event.
            for stamped in text.split_terminator(' ') {
                let (index, sent) = stamped.split_once('@').context("a chunk has no stamp")?;
                outcome.in_order &= index.parse() == Ok(outcome.chunks);
                outcome.chunks += 1;
                outcome.latency_ns.push(now.saturating_sub(sent.parse()?));
            }
        }
        Ok(outcome)
    }
}

/// The content of an event. An error event returns an error.
fn content(event: &[u8]) -> anyhow::Result<Option<String>> {
    const KEY: &[u8] = b"\"content\":\"";
    let Some(start) = memchr::memmem::find(event, KEY) else {
        if memchr::memmem::find(event, b"\"error\"").is_some() {
            bail!("error event: {}", String::from_utf8_lossy(event));
        }
        return Ok(None);
    };
    let text = &event[start + KEY.len()..];
    let mut end = 0;
    while end < text.len() && text[end] != b'"' {
        end += if text[end] == b'\\' { 2 } else { 1 };
    }
    let raw = text.get(..end).context("an event's content has no end")?;
    Ok(Some(String::from_utf8_lossy(raw).into_owned()))
}

/// Runs `streams` concurrent streams to their ends.
///
/// # Errors
/// The error of the first stream that fails.
pub(crate) async fn run(
    target: &Target,
    streams: usize,
    limit: Duration,
) -> anyhow::Result<Vec<StreamResult>> {
    let tasks: Vec<_> = (0..streams)
        .map(|_| {
            let target = target.clone();
            AbortOnDropHandle::new(tokio::spawn(
                async move { target.open().await?.finish().await },
            ))
        })
        .collect();
    let all = async {
        let mut outcomes = Vec::with_capacity(streams);
        for task in tasks {
            outcomes.push(task.await??);
        }
        anyhow::Ok(outcomes)
    };
    tokio::time::timeout(limit, all)
        .await
        .context("the streams did not end in time")?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_found_in_both_dialects_and_errors_are_errors() {
        let openai = br#"data: {"choices":[{"delta":{"content":"tok1 "}}]}"#;
        assert_eq!(content(openai).unwrap().unwrap(), "tok1 ");
        let opensearch = br#"data: {"inference_results":[{"output":[{"name":"response","dataAsMap":{"content":"a\"b","is_last":false}}]}]}"#;
        assert_eq!(content(opensearch).unwrap().unwrap(), "a\\\"b");
        assert_eq!(content(b": keep-alive").unwrap(), None);
        assert!(content(br#"data: {"error":{"message":"no"}}"#).is_err());
    }
}
