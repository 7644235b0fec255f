//! A server of files over HTTP, with ranges, that may be slow and may be cut.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// What is sent at once, in bytes.
const PIECE: usize = 4 << 10;

/// A running server.
pub struct Files {
    /// Where its files are, without a `/` at the end.
    pub url: String,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Files {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Files {
    /// Starts one that serves these paths. It waits for `pause` after each 4 KiB, and cuts every
    /// answer after `cut` bytes of its body.
    ///
    /// # Panics
    /// When it cannot listen.
    pub async fn start(files: BTreeMap<String, Vec<u8>>, pause: Duration, cut: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address");
        let files = Arc::new(files);
        let task = tokio::spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let files = files.clone();
                clients.spawn(async move {
                    // A client that goes away is none of the story's business.
                    let _ = serve(socket, &files, pause, cut).await;
                });
            }
        });
        Self {
            url: format!("http://{address}"),
            task,
        }
    }
}

async fn serve(
    mut socket: TcpStream,
    files: &BTreeMap<String, Vec<u8>>,
    pause: Duration,
    cut: usize,
) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let mut words = head.split(' ');
    let (method, path) = (words.next(), words.next().unwrap_or_default());
    let Some(whole) = files.get(path) else {
        let none = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        return socket.write_all(none.as_bytes()).await;
    };
    let range = head.split("\r\nrange: bytes=").nth(1);
    let from = range.and_then(|range| range.split('-').next()?.parse::<usize>().ok());
    let body = whole.get(from.unwrap_or(0)..).unwrap_or_default();
    let status = match from {
        Some(from) => format!(
            "206 Partial Content\r\ncontent-range: bytes {from}-{}/{}",
            whole.len() - 1,
            whole.len()
        ),
        None => "200 OK".to_owned(),
    };
    let answer = format!(
        "HTTP/1.1 {status}\r\netag: \"one\"\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    socket.write_all(answer.as_bytes()).await?;
    if method == Some("head") {
        return Ok(());
    }
    for piece in body[..cut.min(body.len())].chunks(PIECE) {
        socket.write_all(piece).await?;
        tokio::time::sleep(pause).await;
    }
    Ok(())
}
