//! A client that costs next to nothing and knows what it sends: one request of HTTP/1.1 on a
//! connection of its own.

use std::io;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// Nothing that is asked here takes longer.
const LIMIT: Duration = Duration::from_secs(120);
/// What marks the last event of a stream.
const LAST: &[u8] = b"\"is_last\":true";

/// A request that was sent, and what has come back so far.
#[derive(Debug)]
pub struct PendingRequest {
    /// The connection.
    pub socket: TcpStream,
    /// What was read.
    pub read: Vec<u8>,
    /// When connecting began.
    pub began: Instant,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Everything that was read.
    pub text: String,
    /// From the beginning of connecting to the head.
    pub after: Duration,
    /// Whether the stream came to its last event.
    pub whole: bool,
}

/// The bytes of a request for a stream.
#[must_use]
pub fn request(model: &str, parameters: &Value) -> String {
    let body = json!({ "parameters": parameters }).to_string();
    crate::http::post(
        &format!("/_plugins/_ml/models/{model}/_predict/stream"),
        &body,
    )
}

/// Connects and sends a request for a stream.
///
/// # Errors
/// When that fails.
pub async fn ask(address: &str, model: &str, parameters: &Value) -> io::Result<PendingRequest> {
    let began = Instant::now();
    let socket = TcpStream::connect(address).await?;
    send(socket, began, &request(model, parameters)).await
}

/// The same with a receive buffer of a few KiB.
///
/// # Errors
/// When that fails.
pub async fn ask_small(
    address: &str,
    model: &str,
    parameters: &Value,
) -> io::Result<PendingRequest> {
    let began = Instant::now();
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4 << 10)?;
    let address = address.parse().map_err(io::Error::other)?;
    let socket = socket.connect(address).await?;
    send(socket, began, &request(model, parameters)).await
}

async fn send(mut socket: TcpStream, began: Instant, request: &str) -> io::Result<PendingRequest> {
    socket.set_nodelay(true)?;
    socket.write_all(request.as_bytes()).await?;
    Ok(PendingRequest {
        socket,
        read: Vec::new(),
        began,
    })
}

impl PendingRequest {
    /// Reads until `is_there` what is waited for; false at the end of the connection.
    async fn until(&mut self, is_there: impl Fn(&[u8]) -> bool) -> io::Result<bool> {
        let mut piece = [0; 4 << 10];
        let reading = async {
            while !is_there(&self.read) {
                match self.socket.read(&mut piece).await? {
                    0 => return Ok(false),
                    length => self.read.extend_from_slice(&piece[..length]),
                }
            }
            Ok(true)
        };
        let read = tokio::time::timeout(LIMIT, reading).await;
        read.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Reads up to the first event of a stream.
    ///
    /// # Errors
    /// When there is none.
    pub async fn first(&mut self) -> io::Result<Duration> {
        match self.until(|read| find(read, b"data: ").is_some()).await? {
            true => Ok(self.began.elapsed()),
            false => Err(io::Error::other(
                String::from_utf8_lossy(&self.read).into_owned(),
            )),
        }
    }

    /// Reads all that comes. A connection that breaks ends what was read.
    pub async fn answer(mut self) -> Answer {
        let head = self.until(|read| find(read, b"\r\n\r\n").is_some()).await;
        let after = self.began.elapsed();
        // How it ended is in what was read.
        let _ = match head {
            Ok(true) => self.until(|read| find(read, LAST).is_some()).await,
            ended => ended,
        };
        let whole = find(&self.read, LAST).is_some();
        if whole {
            // Closed in order, it would hold one of 28,000 local ports for a minute, and connecting
            // gets slower as they go: what a scene measures then is this machine's ports.
            let _ = self.socket.set_zero_linger();
        }
        let text = String::from_utf8_lossy(&self.read).into_owned();
        let status = text
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        Answer {
            status: status.unwrap_or(0),
            whole,
            text,
            after,
        }
    }

    /// Waits, without reading more than that, until the server closes; `None` when it does not.
    pub async fn closed_within(mut self, limit: Duration) -> Option<Duration> {
        let began = self.began;
        let mut piece = [0; 4 << 10];
        let closing = async { while let Ok(1..) = self.socket.read(&mut piece).await {} };
        let closed = tokio::time::timeout(limit, closing).await;
        closed.ok().map(|()| began.elapsed())
    }
}

/// Connects and sends these bytes.
///
/// # Errors
/// When that fails.
pub async fn say(address: &str, bytes: &[u8]) -> io::Result<PendingRequest> {
    let began = Instant::now();
    let mut socket = TcpStream::connect(address).await?;
    socket.write_all(bytes).await?;
    Ok(PendingRequest {
        socket,
        read: Vec::new(),
        began,
    })
}

/// The body of what is at a path.
///
/// # Errors
/// When nothing answers.
pub async fn get(address: &str, path: &str) -> io::Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: volley\r\nconnection: close\r\n\r\n");
    let mut asked = say(address, request.as_bytes()).await?;
    asked.until(|_| false).await?;
    let text = String::from_utf8_lossy(&asked.read).into_owned();
    let body = text.split_once("\r\n\r\n");
    Ok(body.map(|(_, body)| body.to_owned()).unwrap_or_default())
}

fn find(text: &[u8], word: &[u8]) -> Option<usize> {
    text.windows(word.len()).position(|window| window == word)
}
