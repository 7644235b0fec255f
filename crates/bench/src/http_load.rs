//! Repeats one request to any HTTP server, for comparisons with other servers.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use clap::Args;
use futures::future::try_join_all;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use crate::stats::percentile;

/// What to send, and for how long.
#[derive(Debug, Args)]
pub(crate) struct HttpLoad {
    /// Where to: plain HTTP.
    url: Uri,
    /// The file with the body.
    #[arg(long)]
    body: PathBuf,
    /// The body's content type.
    #[arg(long, default_value = "application/json")]
    content_type: String,
    /// Requests at once, each on a connection of its own that is kept.
    #[arg(long, default_value_t = 1)]
    concurrency: usize,
    /// How long to measure.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}

impl HttpLoad {
    /// Sends the requests, and returns the rate and the latencies as JSON. Any status except 200 is
    /// an error.
    pub(crate) async fn run(&self) -> anyhow::Result<Value> {
        let body = Bytes::from(std::fs::read(&self.body).context("reading the body")?);
        let started = Instant::now();
        let end = started + Duration::from_secs(self.seconds);
        let callers = (0..self.concurrency.max(1)).map(|_| {
            let body = body.clone();
            async move { self.repeat(body, end).await }
        });
        let mut times: Vec<u64> = try_join_all(callers).await?.concat();
        let took = started.elapsed();
        ensure!(!times.is_empty(), "no request was answered in that time");
        let mut ms = |share| percentile(&mut times, share) as f64 / 1e6;
        let (p50_ms, p99_ms) = (ms(0.5), ms(0.99));
        Ok(json!({
            "requests": times.len(),
            "seconds": took.as_secs_f64(),
            "per_second": times.len() as f64 / took.as_secs_f64(),
            "p50_ms": p50_ms,
            "p99_ms": p99_ms,
        }))
    }

    async fn repeat(&self, body: Bytes, end: Instant) -> anyhow::Result<Vec<u64>> {
        let (mut sender, _connection) = self.connect().await?;
        let mut times = Vec::new();
        while Instant::now() < end {
            let asked = Instant::now();
            let request = Request::post(self.path())
                .header("host", self.authority()?)
                .header("content-type", &self.content_type)
                .body(Full::new(body.clone()))?;
            sender.ready().await?;
            let response = sender.send_request(request).await?;
            let status = response.status();
            let answer = response.into_body().collect().await?.to_bytes();
            if status != 200 {
                bail!("status {status}: {}", String::from_utf8_lossy(&answer));
            }
            times.push(u64::try_from(asked.elapsed().as_nanos())?);
        }
        Ok(times)
    }

    async fn connect(&self) -> anyhow::Result<(SendRequest<Full<Bytes>>, AbortOnDropHandle<()>)> {
        let address: SocketAddr = self.authority()?.parse().context("give an address")?;
        let socket = TcpStream::connect(address).await.context("connecting")?;
        socket.set_nodelay(true)?;
        let (sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
        let connection = AbortOnDropHandle::new(tokio::spawn(async move {
            // A failed connection shows up as a failed request.
            let _ = connection.await;
        }));
        Ok((sender, connection))
    }

    fn authority(&self) -> anyhow::Result<&str> {
        let authority = self.url.authority().context("the URL has no address")?;
        Ok(authority.as_str())
    }

    fn path(&self) -> &str {
        self.url.path_and_query().map_or("/", |path| path.as_str())
    }
}
