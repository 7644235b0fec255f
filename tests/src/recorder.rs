//! An upstream that keeps what it is sent, and answers what it is told to.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A request, as it came.
#[derive(Clone, Debug)]
pub struct Received {
    /// The request line and the headers.
    pub head: String,
    /// The body.
    pub body: Value,
}

/// What is answered to a request: the status, the media type, and the body.
pub type Answer = (u16, &'static str, String);

type Answers = Box<dyn Fn(&Received) -> Answer + Send + Sync>;

#[derive(Default)]
struct State {
    received: Mutex<Vec<Received>>,
    answers: Mutex<Option<Answers>>,
}

/// A running upstream.
pub struct Recorder {
    /// Where it listens, without a path.
    pub url: String,
    state: Arc<State>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Recorder {
    /// Starts one that answers as `answers` says.
    ///
    /// # Panics
    /// When it cannot listen.
    pub async fn start(answers: impl Fn(&Received) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("its address"));
        let state = Arc::new(State::default());
        let shared = state.clone();
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, shared.clone()));
            }
        });
        let recorder = Self { url, state, task };
        recorder.answer(answers);
        recorder
    }

    /// Answers as `answers` says from now on.
    pub fn answer(&self, answers: impl Fn(&Received) -> Answer + Send + Sync + 'static) {
        let held = self.state.answers.lock();
        *held.unwrap_or_else(PoisonError::into_inner) = Some(Box::new(answers));
    }

    /// Takes the requests that came since it was last asked.
    #[must_use]
    pub fn take(&self) -> Vec<Received> {
        let received = self.state.received.lock();
        let mut received = received.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut received)
    }
}

/// Serves one request; connections are not kept.
async fn serve(mut socket: TcpStream, state: Arc<State>) {
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    let received = loop {
        match socket.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(read) => bytes.extend_from_slice(&buffer[..read]),
        }
        if let Some(received) = whole(&bytes) {
            break received;
        }
    };
    let (status, media, body) = {
        let answers = state.answers.lock();
        let answers = answers.unwrap_or_else(PoisonError::into_inner);
        answers.as_ref().map_or_else(
            || (500, "text/plain", String::new()),
            |answers| answers(&received),
        )
    };
    let list = state.received.lock();
    list.unwrap_or_else(PoisonError::into_inner).push(received);
    let answer = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: {media}\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    );
    let _ = socket.write_all(answer.as_bytes()).await;
}

/// The request, where it is there.
fn whole(bytes: &[u8]) -> Option<Received> {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let lower = head.to_ascii_lowercase();
    let mut lines = lower.lines();
    let length = lines.find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    if body.len() < length.unwrap_or(0_usize) {
        return None;
    }
    Some(Received {
        head: head.to_owned(),
        body: serde_json::from_str(body).unwrap_or_default(),
    })
}
