//! The stand-in upstream: an OpenAI-compatible server. The query of its URL scripts the stream. It
//! does no other work, so that a benchmark measures only the servers in front of it.

use std::convert::Infallible;
use std::pin::Pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use bytes::{Bytes, BytesMut};
use futures::Stream;
use http_body_util::StreamBody;
use hyper::body::{Frame, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

/// The stream that the stand-in sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    /// Content chunks.
    pub(crate) chunks: u32,
    /// Time between two chunks, and before the first one.
    pub(crate) delay: Duration,
    /// After this number of chunks, the stream stays open without further events.
    pub(crate) hold_after: Option<u32>,
    /// Whether each chunk contains its sending time, in nanoseconds since 1970, instead of fixed
    /// text.
    pub(crate) stamped: bool,
}

impl Script {
    /// The query that requests this script.
    pub(crate) fn query(&self) -> String {
        let hold = self
            .hold_after
            .map_or(String::new(), |after| format!("&hold_after={after}"));
        let stamped = u8::from(self.stamped);
        format!(
            "chunks={}&delay_us={}&stamped={stamped}{hold}",
            self.chunks,
            self.delay.as_micros()
        )
    }

    fn from_query(query: &str) -> anyhow::Result<Self> {
        let mut script = Self {
            chunks: 16,
            delay: Duration::ZERO,
            hold_after: None,
            stamped: false,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').context("a query pair has no '='")?;
            let number: u64 = value.parse().context("a query value is not a number")?;
            match name {
                "chunks" => script.chunks = u32::try_from(number)?,
                "delay_us" => script.delay = Duration::from_micros(number),
                "hold_after" => script.hold_after = Some(u32::try_from(number)?),
                "stamped" => script.stamped = number != 0,
                _ => anyhow::bail!("unknown query parameter '{name}'"),
            }
        }
        Ok(script)
    }

    /// The complete text of an unstamped stream.
    pub(crate) fn expected_text(&self) -> String {
        (0..self.chunks)
            .map(|index| format!("tok{index} "))
            .collect()
    }

    fn text(&self, index: u32) -> String {
        if self.stamped {
            format!("{index}@{} ", unix_nanos())
        } else {
            format!("tok{index} ")
        }
    }
}

/// The current time in nanoseconds since 1970. All processes of a machine share this clock.
pub(crate) fn unix_nanos() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Serves until the process ends.
pub(crate) async fn serve(listener: TcpListener) -> anyhow::Result<()> {
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        tokio::spawn(async move {
            let service = hyper::service::service_fn(answer);
            let mut server = hyper::server::conn::http1::Builder::new();
            let connection = server
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(socket), service);
            // A client that disconnects ends the script without a failure.
            let _ = connection.await;
        });
    }
}

type Body = StreamBody<Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, Infallible>> + Send>>>;

async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let script = Script::from_query(request.uri().query().unwrap_or_default());
    // Reads the complete body of the request, as a real server does.
    let _ = http_body_util::BodyExt::collect(request.into_body()).await;
    let (status, body): (u16, Body) = match script {
        Ok(script) => (200, StreamBody::new(Box::pin(events(script)))),
        Err(error) => {
            let text = Bytes::from(format!("{{\"error\":{{\"message\":\"{error}\"}}}}"));
            let once = futures::stream::once(async move { Ok(Frame::data(text)) });
            (400, StreamBody::new(Box::pin(once)))
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = hyper::StatusCode::from_u16(status).unwrap_or_default();
    let media = if status == 200 {
        "text/event-stream"
    } else {
        "application/json"
    };
    let media = hyper::header::HeaderValue::from_static(media);
    response
        .headers_mut()
        .insert(hyper::header::CONTENT_TYPE, media);
    Ok(response)
}

fn events(script: Script) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
    futures::stream::unfold((script, 0, None), |(script, index, ticks)| async move {
        let mut ticks: Option<tokio::time::Interval> = ticks;
        if script.hold_after == Some(index) {
            std::future::pending::<()>().await;
        }
        if script.chunks < index {
            return None;
        }
        if !script.delay.is_zero() && index < script.chunks {
            let ticks = ticks.get_or_insert_with(|| interval(script.delay));
            ticks.tick().await;
        }
        let frame = Frame::data(event(&script, index));
        Some((Ok(frame), (script, index + 1, ticks)))
    })
}

fn interval(period: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks
}

fn event(script: &Script, index: u32) -> Bytes {
    let mut out = BytesMut::with_capacity(256);
    let head = "data: {\"id\":\"standin\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"standin\",\"choices\":[{\"index\":0,\"delta\":{";
    out.extend_from_slice(head.as_bytes());
    if index < script.chunks {
        let text = script.text(index);
        out.extend_from_slice(
            format!("\"content\":\"{text}\"}},\"finish_reason\":null}}]}}\n\n").as_bytes(),
        );
    } else {
        let usage = format!(
            "}},\"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":1,\"completion_tokens\":{0},\"total_tokens\":{1}}}}}\n\ndata: [DONE]\n\n",
            script.chunks,
            script.chunks + 1
        );
        out.extend_from_slice(usage.as_bytes());
    }
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_survives_its_query() {
        let script = Script {
            chunks: 7,
            delay: Duration::from_micros(20_500),
            hold_after: Some(1),
            stamped: true,
        };
        assert_eq!(Script::from_query(&script.query()).unwrap(), script);
        for bad in ["chunks", "chunks=x", "colour=1"] {
            assert!(Script::from_query(bad).is_err());
        }
    }
}
