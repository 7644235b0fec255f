//! A store of objects that speaks as much of S3 as one file needs: put, put if there is none, get.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const DATE: &str = "Wed, 21 Oct 2015 07:28:00 GMT";

type Objects = Arc<Mutex<BTreeMap<String, Vec<u8>>>>;

/// A running store. It takes requests of the access key `volley` alone.
pub struct Bucket {
    /// What is in it, by path with the bucket's name.
    pub objects: Objects,
    address: String,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Bucket {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Bucket {
    /// Starts one, with nothing in it.
    ///
    /// # Panics
    /// When it cannot listen.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        let objects = Objects::default();
        let served = objects.clone();
        let task = tokio::spawn(async move {
            let mut calls = tokio::task::JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                calls.spawn(serve(socket, served.clone()));
            }
        });
        Self {
            objects,
            address,
            task,
        }
    }

    /// The settings that lead a process there.
    #[must_use]
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT", format!("http://{}", self.address)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "eu-central-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", "volley".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "sk-volley-bucket".to_owned()),
        ]
    }
}

/// One request on each connection.
async fn serve(mut socket: TcpStream, objects: Objects) {
    let mut read = Vec::new();
    let (head, mut body) = loop {
        let mut piece = [0; 8 << 10];
        let Ok(count @ 1..) = socket.read(&mut piece).await else {
            return;
        };
        read.extend_from_slice(&piece[..count]);
        if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            let body = read.split_off(end + 4);
            break (String::from_utf8_lossy(&read).into_owned(), body);
        }
    };
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        let found = lines.find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.to_owned())
    };
    let length: usize = header("content-length").map_or(0, |text| text.parse().unwrap_or(0));
    while body.len() < length {
        let mut piece = [0; 8 << 10];
        let Ok(count @ 1..) = socket.read(&mut piece).await else {
            return;
        };
        body.extend_from_slice(&piece[..count]);
    }
    let mut words = head.split_whitespace();
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let known = header("authorization").is_some_and(|text| text.contains("Credential=volley/"));
    let answer = {
        let mut objects = objects.lock().expect("no test panics here");
        match (known, method, objects.get(path)) {
            (false, ..) => (403, Vec::new()),
            (_, "PUT", Some(_)) if header("if-none-match").is_some() => (412, Vec::new()),
            (_, "PUT", _) => {
                objects.insert(path.to_owned(), body);
                (200, Vec::new())
            }
            (_, "GET", Some(found)) => (200, found.clone()),
            (_, "GET", None) => (404, Vec::new()),
            _ => (501, Vec::new()),
        }
    };
    let (status, bytes) = answer;
    let head = format!(
        "HTTP/1.1 {status} x\r\netag: \"{}\"\r\nlast-modified: {DATE}\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        bytes.len(),
        bytes.len()
    );
    // A client that has gone hears nothing.
    let _ = socket.write_all(&[head.as_bytes(), &bytes].concat()).await;
    let _ = socket.shutdown().await;
}
