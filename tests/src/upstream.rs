//! An upstream that does as it is told: it answers every request with the same bytes, and then
//! closes or waits for its client to leave.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// A running upstream.
pub struct Upstream {
    /// Where a connector calls it.
    pub url: String,
    /// Rings each time that a client has left.
    pub left: mpsc::Receiver<()>,
    /// Every request, as it came.
    pub requests: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A chunk of text in OpenAI's format.
#[must_use]
pub fn chunk(text: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n")
}

/// An answer's head.
#[must_use]
pub fn head(status: &str, media: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-type: {media}\r\nconnection: close\r\n\r\n")
}

impl Upstream {
    /// Starts one that answers with `bytes`, and then holds the connection open if `hold`.
    ///
    /// # Panics
    /// When it cannot listen.
    pub async fn start(bytes: impl Into<Vec<u8>>, hold: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let (leave, left) = mpsc::channel(64);
        let bytes: Vec<u8> = bytes.into();
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let seen = requests.clone();
        let task = tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let (bytes, leave, seen) = (bytes.clone(), leave.clone(), seen.clone());
                tokio::spawn(async move {
                    let mut buffer = vec![0; 64 << 10];
                    let mut request = Vec::new();
                    // A body in JSON ends in a brace; what is answered does not depend on it.
                    while !request.ends_with(b"}") {
                        match socket.read(&mut buffer).await {
                            Ok(0) | Err(_) => return,
                            Ok(read) => request.extend_from_slice(&buffer[..read]),
                        }
                    }
                    let request = String::from_utf8_lossy(&request).into_owned();
                    seen.lock().expect("nobody panics here").push(request);
                    let _ = socket.write_all(&bytes).await;
                    if hold {
                        while !matches!(socket.read(&mut buffer).await, Ok(0) | Err(_)) {}
                        let _ = leave.send(()).await;
                    }
                });
            }
        });
        Self {
            url: format!("http://{address}/v1/chat/completions"),
            left,
            requests,
            task,
        }
    }
}
