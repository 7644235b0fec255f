//! A file server that fails on command: HTTP with ranges and ETags, and the listing of an S3
//! bucket.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const DATE: &str = "Wed, 21 Oct 2015 07:28:00 GMT";

/// What happens to a GET instead of a complete response.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// The connection is closed after this many bytes of the body.
    Cut(usize),
    /// The server sends nothing after this many bytes of the body.
    Hang(usize),
    /// A response with this status and no body.
    Status(u16),
    /// The whole body, regardless of the requested range.
    NoRange,
}

/// A request as it arrived, header names in lower case.
#[derive(Clone, Debug)]
pub(crate) struct RecordedRequest {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: BTreeMap<String, String>,
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    redirects: BTreeMap<String, String>,
    acts: VecDeque<Act>,
    /// The status of all HEAD responses, if set.
    heads: Option<u16>,
    seen: Vec<RecordedRequest>,
}

/// A running server.
pub(crate) struct Server {
    pub(crate) port: u16,
    state: Arc<Mutex<State>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = state.clone();
        let task = tokio::spawn(async move {
            let mut sockets = tokio::task::JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                sockets.spawn(serve(socket, shared.clone()));
            }
        });
        Self { port, state, task }
    }

    /// The URL of a path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Stores a file at a path, replacing an older one.
    pub(crate) fn put(&self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.state
            .lock()
            .files
            .insert(path.to_owned(), bytes.into());
    }

    /// Redirects a path to a URL.
    pub(crate) fn redirect(&self, path: &str, to: impl Into<String>) {
        let mut state = self.state.lock();
        state.redirects.insert(path.to_owned(), to.into());
    }

    /// Sets the acts of the next GETs, in order.
    pub(crate) fn act(&self, acts: impl IntoIterator<Item = Act>) {
        self.state.lock().acts.extend(acts);
    }

    /// Responds to each HEAD with this status.
    pub(crate) fn refuse_heads(&self, status: u16) {
        self.state.lock().heads = Some(status);
    }

    /// The requests so far.
    pub(crate) fn seen(&self) -> Vec<RecordedRequest> {
        self.state.lock().seen.clone()
    }

    /// The ranges of all GETs of a path so far; empty for a GET without a range.
    pub(crate) fn ranges(&self, path: &str) -> Vec<String> {
        let seen = self.seen();
        let gets = seen
            .iter()
            .filter(|seen| seen.method == "GET" && seen.target == path);
        gets.map(|seen| seen.headers.get("range").cloned().unwrap_or_default())
            .collect()
    }
}

async fn serve(mut socket: TcpStream, state: Arc<Mutex<State>>) {
    let mut head = Vec::new();
    let mut byte = [0; 1];
    while !head.ends_with(b"\r\n\r\n") {
        match socket.read(&mut byte).await {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let seen = parse(&String::from_utf8_lossy(&head));
    let (answer, then) = {
        let mut state = state.lock();
        state.seen.push(seen.clone());
        answer(&mut state, &seen)
    };
    let _ = socket.write_all(&answer).await;
    if then == Then::Hang {
        // The client must give up: the socket stays open until the test ends.
        std::future::pending::<()>().await;
    }
}

fn parse(head: &str) -> RecordedRequest {
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let mut word = || words.next().unwrap_or_default().to_owned();
    let (method, target) = (word(), word());
    let headers = lines.filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    });
    RecordedRequest {
        method,
        target,
        headers: headers.collect(),
    }
}

#[derive(PartialEq)]
enum Then {
    Close,
    Hang,
}

fn answer(state: &mut State, seen: &RecordedRequest) -> (Vec<u8>, Then) {
    let (path, query) = seen.target.split_once('?').unwrap_or((&seen.target, ""));
    // Some clients encode every dot.
    let path = &*path.replace("%2E", ".");
    if query.contains("list-type=2") {
        return (listing(state, path, query), Then::Close);
    }
    if let Some(to) = state.redirects.get(path) {
        let head = format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\n");
        return (plain(&head), Then::Close);
    }
    if let (Some(status), "HEAD") = (state.heads, &*seen.method) {
        return (plain(&format!("HTTP/1.1 {status} Told\r\n")), Then::Close);
    }
    let Some(whole) = state.files.get(path).cloned() else {
        return (plain("HTTP/1.1 404 Not Found\r\n"), Then::Close);
    };
    let tag = format!(
        "\"{}-{}\"",
        whole.len(),
        whole.iter().map(|b| u64::from(*b)).sum::<u64>()
    );
    let differs = |wanted: &String| *wanted != tag;
    if seen.headers.get("if-match").is_some_and(differs) {
        return (plain("HTTP/1.1 412 Precondition Failed\r\n"), Then::Close);
    }
    if seen.method == "HEAD" {
        return (head("200 OK", &tag, whole.len(), ""), Then::Close);
    }
    let act = state.acts.pop_front();
    if let Some(Act::Status(status)) = act {
        return (plain(&format!("HTTP/1.1 {status} Told\r\n")), Then::Close);
    }
    let from = match (seen.headers.get("range"), &act) {
        (_, Some(Act::NoRange)) | (None, _) => None,
        (Some(range), _) => range
            .strip_prefix("bytes=")
            .and_then(|range| range.split('-').next()?.parse::<usize>().ok()),
    };
    let body = &whole[from.unwrap_or(0)..];
    let mut answer = match from {
        None => head("200 OK", &tag, body.len(), ""),
        Some(from) => {
            let range = format!(
                "content-range: bytes {from}-{}/{}\r\n",
                whole.len() - 1,
                whole.len()
            );
            head("206 Partial Content", &tag, body.len(), &range)
        }
    };
    let (bytes, then) = match act {
        Some(Act::Cut(bytes)) => (bytes, Then::Close),
        Some(Act::Hang(bytes)) => (bytes, Then::Hang),
        _ => (body.len(), Then::Close),
    };
    answer.extend_from_slice(&body[..bytes.min(body.len())]);
    (answer, then)
}

fn plain(head: &str) -> Vec<u8> {
    format!("{head}content-length: 0\r\nconnection: close\r\n\r\n").into_bytes()
}

fn head(status: &str, tag: &str, bytes: usize, more: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\netag: {tag}\r\nlast-modified: {DATE}\r\ncontent-length: {bytes}\r\n\
         accept-ranges: bytes\r\n{more}connection: close\r\n\r\n"
    )
    .into_bytes()
}

/// The S3 listing of a bucket below a prefix.
fn listing(state: &State, bucket: &str, query: &str) -> Vec<u8> {
    let prefix = query
        .split('&')
        .find_map(|part| part.strip_prefix("prefix="));
    let prefix = prefix.unwrap_or_default().replace("%2F", "/");
    let base = format!("{}/", bucket.trim_end_matches('/'));
    let entries: String = state
        .files
        .iter()
        .filter_map(|(path, bytes)| Some((path.strip_prefix(&base)?, bytes)))
        .filter(|(key, _)| key.starts_with(&prefix))
        .map(|(key, bytes)| {
            format!(
                "<Contents><Key>{key}</Key><Size>{}</Size>\
                 <LastModified>2015-10-21T07:28:00.000Z</LastModified></Contents>",
                bytes.len()
            )
        })
        .collect();
    let body =
        format!("<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>");
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/xml\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}
