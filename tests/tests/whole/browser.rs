//! A real browser: its `EventSource` goes on at another coordinator when the one that it reads from
//! is killed, and its `WebSocket` asks, cancels and is refused.
//!
//! Chromium opens a page of this test, which tells what it sees. The cluster is another origin:
//! a balancer of this test, behind which the coordinators are.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use volley_tests::PATIENCE;
use volley_tests::cluster::Cluster;

const EVENTS: usize = 150;

/// Reads a stream to its end with an `EventSource`, and tells how far it is.
const READS: &str = r#"
const told = [];
let errors = 0;
const source = new EventSource(target);
source.onmessage = (event) => {
  told.push([event.lastEventId, event.data]);
  if (told.length % 10 == 0) report({ seen: told.length });
};
source.onerror = () => {
  errors += 1;
  if (source.readyState == EventSource.CLOSED) report({ done: { told, errors } });
};
"#;

/// Opens a socket; asks twice, cancels what has no end, and tells all that was said.
const TALKS: &str = r#"
const told = {};
const socket = new WebSocket(target, ["volley.v1"]);
const ask = (id, chunks) => socket.send(JSON.stringify({
  id, rows: [{ prompt: "x" }], parameters: { chunks, delay_ms: 5, text: id + "{n} " },
}));
socket.onopen = () => { ask("a", 5); ask("b", 5); ask("endless", 1000000); };
socket.onmessage = (event) => {
  const said = JSON.parse(event.data);
  (told[said.id] ??= []).push(said);
  if (said.id == "endless" && told.endless.length == 3) socket.send('{"cancel":"endless"}');
  const over = Object.values(told).filter((all) => all.at(-1).last || all.at(-1).error);
  if (over.length == 3) socket.close(1000);
};
socket.onclose = (event) => report({ done: { told, code: event.code, spoken: socket.protocol } });
"#;

/// Tries what a page of an origin that nobody named may not do.
const TRIES: &str = r#"
const refused = {};
const told = (what) => {
  refused[what] = true;
  if (Object.keys(refused).length == 3) report({ done: refused });
};
const socket = new WebSocket(target.replace("http", "ws") + "/_plugins/_ml/models/drill/_predict/ws");
socket.onopen = () => report({ done: "a socket was opened" });
socket.onerror = () => told("socket");
const source = new EventSource(target + "/v1/streams/1.AAAAAAAAAAAAAAAAAAAAAA");
source.onerror = () => { source.close(); told("events"); };
fetch(target + "/v1/models").then(() => report({ done: "an answer was read" }), () => told("fetch"));
"#;

/// Serves one page, and hears what it reports.
pub(crate) struct Page {
    pub(crate) address: String,
    heard: mpsc::Receiver<Value>,
    _server: JoinSet<()>,
}

impl Page {
    pub(crate) async fn bind() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").await.unwrap()
    }

    /// A page that runs `script` with `target`.
    pub(crate) fn serve(listener: TcpListener, script: &str, target: &str) -> Self {
        let address = listener.local_addr().unwrap().to_string();
        let page = format!(
            "<!doctype html><script>\nconst target = {};\nconst report = (what) => \
             fetch(\"/report\", {{ method: \"POST\", body: JSON.stringify(what) }});\n{script}\
             </script>",
            json!(target)
        );
        let (hear, heard) = mpsc::channel(64);
        let mut server = JoinSet::new();
        server.spawn(async move {
            let mut visits = JoinSet::new();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                visits.spawn(visit(socket, page.clone(), hear.clone()));
            }
        });
        Self {
            address,
            heard,
            _server: server,
        }
    }

    /// The next report in which there is this.
    pub(crate) async fn reported(&mut self, what: &str) -> Value {
        let report = async {
            loop {
                let report = self.heard.recv().await.expect("the page is served");
                if let Some(told) = report.get(what) {
                    return told.clone();
                }
            }
        };
        let reported = tokio::time::timeout(PATIENCE, report).await;
        reported.unwrap_or_else(|_| panic!("the page did not tell '{what}' in time"))
    }
}

/// Answers the requests of one connection.
async fn visit(socket: TcpStream, page: String, hear: mpsc::Sender<Value>) {
    let mut socket = BufReader::new(socket);
    loop {
        let (mut length, mut line, mut asked) = (0, String::new(), String::new());
        while socket.read_line(&mut line).await.unwrap_or(0) != 0 && line != "\r\n" {
            if asked.is_empty() {
                asked.clone_from(&line);
            }
            let header = line.to_ascii_lowercase();
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            line.clear();
        }
        let mut body = vec![0; length];
        if asked.is_empty() || socket.read_exact(&mut body).await.is_err() {
            return;
        }
        let answer = if asked.starts_with("POST /report ") {
            let report = serde_json::from_slice(&body).unwrap();
            if hear.send(report).await.is_err() {
                return;
            }
            ""
        } else if asked.starts_with("GET / ") {
            &page
        } else {
            ""
        };
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\r\n{answer}",
            answer.len()
        );
        if socket.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Passes connections on to the first of these that takes them. Of the first stream it passes no
/// more than a part of the events on until it is told to.
struct Balancer {
    address: String,
    all: watch::Sender<bool>,
    _server: JoinSet<()>,
}

impl Balancer {
    async fn to(upstreams: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let upstreams: Arc<[String]> = upstreams.into();
        let all = watch::Sender::new(false);
        let mut server = JoinSet::new();
        let told = all.subscribe();
        server.spawn(async move {
            let mut passed = JoinSet::new();
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                let (upstreams, told) = (upstreams.clone(), told.clone());
                passed.spawn(async move {
                    for upstream in upstreams.iter() {
                        if let Ok(mut there) = TcpStream::connect(upstream).await {
                            pass(&mut socket, &mut there, told).await;
                            return;
                        }
                    }
                });
            }
        });
        Self {
            address,
            all,
            _server: server,
        }
    }

    fn pass_all(&self) {
        self.all.send_replace(true);
    }
}

/// Both ways, until one side closes. Behind so many events it waits until it may pass all.
async fn pass(here: &mut TcpStream, there: &mut TcpStream, mut all: watch::Receiver<bool>) {
    let (mut from_here, mut to_here) = here.split();
    let (mut from_there, mut to_there) = there.split();
    let down = async {
        let (mut events, mut piece) = (0, [0; 512]);
        while let Ok(count @ 1..) = from_there.read(&mut piece).await {
            let said = &piece[..count];
            if to_here.write_all(said).await.is_err() {
                return;
            }
            events += said.windows(3).filter(|at| at == b"id:").count();
            if EVENTS / 3 < events {
                let _ = all.wait_for(|all| *all).await;
            }
        }
    };
    tokio::select! {
        () = down => {}
        _ = tokio::io::copy(&mut from_here, &mut to_there) => {}
    }
}

/// A browser at a page; killed with all its processes when dropped.
pub(crate) struct Browser {
    process: Child,
    _profile: TempDir,
}

fn chromium() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let mut all = std::env::split_paths(&path)
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .filter(|program| program.is_file());
    all.next()
        .expect("run scripts/get-chromium.sh before the tests")
}

impl Browser {
    pub(crate) fn open(url: &str) -> Self {
        let profile = tempfile::tempdir().unwrap();
        let process = Command::new(chromium())
            .args([
                "--headless=new",
                // Its sandbox needs a user that is not root, and only this test's page is opened.
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--disable-component-update",
                "--no-first-run",
                "--no-proxy-server",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg(url)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        Self {
            process: process.expect("the browser starts"),
            _profile: profile,
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if let Some(id) = self.process.id() {
            let group = format!("-{id}");
            let _ = std::process::Command::new("kill")
                .args(["-KILL", "--", &group])
                .status();
        }
    }
}

/// Three coordinators that let pages of these origins in, with a model to drill.
pub(crate) async fn cluster_of(origins: &[String]) -> Cluster {
    let mut cluster = Cluster::new(3, 1);
    for coordinator in 0..3 {
        cluster.configure(coordinator, |text| {
            format!("{text}\n[browser]\norigins = {origins:?}\n")
        });
    }
    cluster.run().await;
    let model = json!({ "name": "drill", "function_name": "fake" });
    cluster.deploy(&model, 1).await;
    cluster
}

/// Begins a stream that waits at the first coordinator; gives its path.
async fn detached(cluster: &Cluster) -> String {
    // The second client of a process finds it installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let address = &cluster.coordinators[0].http;
    let path = "/_plugins/_ml/models/drill/_predict/stream?volley-stream=detached";
    let parameters =
        json!({ "prompt": "x", "chunks": EVENTS - 1, "delay_ms": 40, "text": "n{n} " });
    let request = reqwest::Client::new()
        .post(format!("http://{address}{path}"))
        .header("content-type", "application/json")
        .body(json!({ "parameters": parameters }).to_string());
    let begun = request.send().await.unwrap();
    assert_eq!(begun.status(), 202);
    let begun: Value = serde_json::from_str(&begun.text().await.unwrap()).unwrap();
    begun["url"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_source_goes_on_at_another_coordinator_and_a_socket_talks() {
    let (events, talks) = (Page::bind().await, Page::bind().await);
    let origin = |listener: &TcpListener| format!("http://{}", listener.local_addr().unwrap());
    let mut cluster = cluster_of(&[origin(&events), origin(&talks)]).await;
    let order = [1, 2, 0].map(|index: usize| cluster.coordinators[index].http.clone());
    let balancer = Balancer::to(order.to_vec()).await;

    let path = detached(&cluster).await;
    let id = path.rsplit('/').next().unwrap().to_owned();
    let url = format!("http://{}{path}", balancer.address);
    let mut page = Page::serve(events, READS, &url);
    let browser = Browser::open(&format!("http://{}/", page.address));
    let seen = page.reported("seen").await.as_u64().unwrap();
    assert!(seen < EVENTS as u64 - 10, "it is in the middle: {seen}");
    cluster.coordinators[1].kill().await;
    balancer.pass_all();
    let done = page.reported("done").await;
    let told = done["told"].as_array().unwrap();
    assert_eq!(told.len(), EVENTS, "nothing is lost, nothing comes twice");
    for (index, event) in told.iter().enumerate() {
        assert_eq!(event[0], format!("{id}.{}", index + 1));
        let word = format!("\"n{index} \"");
        let data = event[1].as_str().unwrap();
        assert!(index == EVENTS - 1 || data.contains(&word), "{data}");
    }
    // Once for the coordinator that was killed, once for the end, and once for 204.
    assert!(2 <= done["errors"].as_u64().unwrap(), "{}", done["errors"]);
    drop(browser);

    let url = format!(
        "ws://{}/_plugins/_ml/models/drill/_predict/ws",
        balancer.address
    );
    let mut page = Page::serve(talks, TALKS, &url);
    let _browser = Browser::open(&format!("http://{}/", page.address));
    let done = page.reported("done").await;
    assert_eq!(
        (&done["code"], &done["spoken"]),
        (&json!(1000), &json!("volley.v1"))
    );
    for id in ["a", "b"] {
        let said = done["told"][id].as_array().unwrap();
        let text: String = said
            .iter()
            .filter_map(|said| said["text"].as_str())
            .collect();
        let whole: String = (0..5).map(|n| format!("{id}{n} ")).collect();
        assert_eq!(text, whole);
        assert_eq!(said.last().unwrap()["last"], true);
    }
    let endless = done["told"]["endless"].as_array().unwrap();
    assert_eq!(endless.last().unwrap()["code"], "cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_nobody_named_is_not_let_in() {
    let cluster = cluster_of(&["http://somewhere.example".to_owned()]).await;
    let listener = Page::bind().await;
    let target = format!("http://{}", cluster.coordinators[0].http);
    let mut page = Page::serve(listener, TRIES, &target);
    let _browser = Browser::open(&format!("http://{}/", page.address));
    let done = page.reported("done").await;
    assert_eq!(
        done,
        json!({ "socket": true, "events": true, "fetch": true })
    );
}
