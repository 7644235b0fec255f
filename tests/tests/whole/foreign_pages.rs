//! Web pages in a real browser: those of other origins change nothing on any route, one that is
//! named streams a chat, and the node's own page needs no inline script.
//!
//! Between the browser and the coordinator stands a proxy that notes what was asked and answered:
//! a page is not told how a request ended that it may not read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use volley_tests::cluster::Cluster;

use super::browser::{Browser, Page, cluster_of};

/// Tries every operation in every way that a page has: simple requests, forms, requests that the
/// browser asks for first, a socket, and all of them from a frame without an origin.
const ATTACKS: &str = r#"
const pause = (frame) => new Promise((done) => { frame.onload = done; });
async function post_form(path, kind) {
  const frame = document.createElement("iframe");
  frame.name = "target";
  document.body.append(frame);
  const form = document.createElement("form");
  Object.assign(form, { method: "post", action: target + path, target: "target", enctype: kind });
  const field = document.createElement("input");
  Object.assign(field, { name: '{"a":"', value: '"}' });
  form.append(field);
  document.body.append(form);
  const loaded = pause(frame);
  form.submit();
  await loaded;
  frame.remove();
  form.remove();
}
const blind = (path, method, body) =>
  fetch(target + path, { method, mode: "no-cors", body }).then(() => {}, () => {});
addEventListener("DOMContentLoaded", async () => {
  let read = 0;
  for (const [method, path] of operations) {
    if (method == "POST") {
      await blind(path, method, "{}");
      await blind(path, method, new URLSearchParams({ "{}": "" }));
      navigator.sendBeacon(target + path, "{}");
      await post_form(path, "text/plain");
    }
    const headers = { "content-type": "application/json" };
    await fetch(target + path, { method, headers, body: "{}" }).then(() => { read += 1; }, () => {});
  }
  const frame = document.createElement("iframe");
  frame.sandbox = "allow-scripts allow-forms";
  frame.srcdoc = `<script>
    fetch(${JSON.stringify(target + operations.find(([method]) => method == "POST")[1])},
      { method: "POST", mode: "no-cors", body: "{}" }).finally(() => parent.postMessage(1, "*"));
  <\/script>`;
  const told = new Promise((done) => addEventListener("message", done));
  document.body.append(frame);
  await told;
  report({ done: { read } });
});
"#;

/// Streams a chat and tells what came.
const CHAT: &str = r#"
(async () => {
  const answer = await fetch(target + "/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json", authorization: "Bearer not-needed" },
    body: JSON.stringify({
      model: "drill", stream: true, messages: [{ role: "user", content: "hi" }],
    }),
  });
  const pieces = [], decoder = new TextDecoder(), reader = answer.body.getReader();
  for (let next; !(next = await reader.read()).done;) pieces.push(decoder.decode(next.value));
  const models = await (await fetch(target + "/v1/models")).json();
  const id = answer.headers.get("x-request-id");
  report({ done: { status: answer.status, told: pieces.join(""), id, models } });
})().catch((error) => report({ done: { failed: String(error) } }));
"#;

/// Shows the node's own page in a frame of its own origin, as far as a page of another may see:
/// so the page itself is opened, and this proxy adds a script that tells what it shows.
const TELLS: &str = r#"
const report = (what) => fetch("/report", { method: "POST", body: JSON.stringify(what) });
addEventListener("securitypolicyviolation", (event) => report({ done: { violated: event.blockedURI } }));
const look = setInterval(() => {
  const shown = document.querySelectorAll("details").length;
  const bold = getComputedStyle(document.querySelector("summary b") || document.body).display;
  if (shown) { clearInterval(look); report({ done: { shown, bold } }); }
}, 20);
"#;

/// What was asked, and with which status it was answered.
type RequestLog = Arc<Mutex<Vec<(String, u16)>>>;

/// Passes connections on to a coordinator, and notes what goes through.
struct Recorder {
    address: String,
    asked: RequestLog,
    _server: JoinSet<()>,
}

impl Recorder {
    async fn before(upstream: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let asked = RequestLog::default();
        let (mut server, noted) = (JoinSet::new(), asked.clone());
        server.spawn(async move {
            let mut passed = JoinSet::new();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let there = TcpStream::connect(&upstream).await.unwrap();
                passed.spawn(pass(socket, there, noted.clone()));
            }
        });
        Self {
            address,
            asked,
            _server: server,
        }
    }
}

/// Both ways until one side closes. Over HTTP/1 answers come in the order of what was asked.
async fn pass(mut here: TcpStream, mut there: TcpStream, noted: RequestLog) {
    let (mut from_here, mut to_here) = here.split();
    let (mut from_there, mut to_there) = there.split();
    let (mut asked, mut answered) = (Vec::new(), Vec::new());
    let up = copy(&mut from_here, &mut to_there, &mut asked);
    let down = copy(&mut from_there, &mut to_here, &mut answered);
    tokio::select! {
        () = up => {}
        () = down => {}
    }
    let asked = String::from_utf8_lossy(&asked).into_owned();
    let asked = asked.match_indices(" HTTP/1.1\r\n").map(|(at, _)| {
        // A body ends where the next request begins, without a break.
        let line = asked[..at].rsplit('\n').next().unwrap_or_default();
        let method = ["GET /", "POST /", "PUT /", "DELETE /", "OPTIONS /"];
        let from = method.iter().filter_map(|it| line.rfind(it)).max();
        line[from.unwrap_or(0)..].to_owned()
    });
    let answered = String::from_utf8_lossy(&answered).into_owned();
    let statuses = answered.match_indices("HTTP/1.1 ").map(|(at, mark)| {
        let digits = &answered[at + mark.len()..][..3];
        digits.parse().unwrap_or(0)
    });
    noted.lock().unwrap().extend(asked.zip(statuses));
}

async fn copy(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    seen: &mut Vec<u8>,
) {
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut piece).await {
        seen.extend_from_slice(&piece[..count]);
        if to.write_all(&piece[..count]).await.is_err() {
            return;
        }
    }
}

async fn get(address: &str, path: &str) -> Value {
    let answer = reqwest::get(format!("http://{address}{path}")).await;
    serde_json::from_str(&answer.unwrap().text().await.unwrap()).unwrap()
}

/// Every operation that may change something, with the model's name for what is open in its path.
async fn operations(cluster: &Cluster) -> Vec<(String, String)> {
    let document = get(&cluster.coordinators[0].http, "/openapi.json").await;
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let filled = path.split('/').map(|part| match part.starts_with('{') {
            true => "drill",
            false => part,
        });
        let filled = filled.collect::<Vec<_>>().join("/");
        for method in methods
            .as_object()
            .unwrap()
            .keys()
            .filter(|it| *it != "get")
        {
            all.push((method.to_ascii_uppercase(), filled.clone()));
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_origin_changes_nothing_on_any_route() {
    let cluster = cluster_of(&["http://somewhere.example".to_owned()]).await;
    let recorder = Recorder::before(cluster.coordinators[0].http.clone()).await;
    let operations = operations(&cluster).await;
    let script = format!("const operations = {};\n{ATTACKS}", json!(operations));
    let target = format!("http://{}", recorder.address);
    let mut page = Page::serve(Page::bind().await, &script, &target);
    let browser = Browser::open(&format!("http://{}/", page.address));
    let done = page.reported("done").await;
    assert_eq!(done, json!({ "read": 0 }), "no answer may be read");
    drop(browser);

    // What the browser asked first never came; all else was refused.
    let posts = operations.iter().filter(|(method, _)| method == "POST");
    let posts: Vec<_> = posts.map(|(_, path)| format!("POST {path}")).collect();
    assert!(40 < posts.len(), "{}", posts.len());
    let told = volley_tests::until("all were refused", || {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for (line, status) in recorder.asked.lock().unwrap().iter() {
            if line.starts_with("OPTIONS ") {
                continue;
            }
            assert_eq!(*status, 403, "{line}");
            *counts.entry(line.clone()).or_default() += 1;
        }
        let all = posts
            .iter()
            .all(|line| counts.get(line).is_some_and(|count| 3 <= *count));
        std::future::ready(all.then_some(counts))
    });
    let counts = told.await;
    assert_eq!(counts.len(), posts.len(), "{counts:?}");
    let model = get(&cluster.coordinators[0].http, "/_plugins/_ml/models/drill").await;
    assert_eq!(model["model_state"], "DEPLOYED", "{model}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_page_streams_a_chat() {
    let listener = Page::bind().await;
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let cluster = cluster_of(&[origin]).await;
    let target = format!("http://{}", cluster.coordinators[0].http);
    let mut page = Page::serve(listener, CHAT, &target);
    let _browser = Browser::open(&format!("http://{}/", page.address));
    let done = page.reported("done").await;
    assert_eq!(done["status"], 200, "{done}");
    let told = done["told"].as_str().unwrap();
    assert!(told.trim_end().ends_with("data: [DONE]"), "{told}");
    assert!(4 < told.matches("data: {").count(), "{told}");
    assert!(done["id"].is_string(), "{done}");
    assert_eq!(done["models"]["data"][0]["id"], "drill", "{done}");
}

/// Serves the coordinator's page with a script of the test in it, under the page's own policy.
async fn page_with_a_witness(socket: TcpStream, upstream: String, told: RequestLog) {
    let mut socket = BufReader::new(socket);
    let (mut head, mut line, mut length) = (String::new(), String::new(), 0);
    while socket.read_line(&mut line).await.unwrap_or(0) != 0 && line != "\r\n" {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        head.push_str(&std::mem::take(&mut line));
    }
    let mut body = vec![0; length];
    if head.is_empty() || socket.read_exact(&mut body).await.is_err() {
        return;
    }
    let path = head.split(' ').nth(1).unwrap_or("/").to_owned();
    let (policy, media, body) = if path == "/report" {
        told.lock()
            .unwrap()
            .push((String::from_utf8(body).unwrap(), 0));
        (String::new(), "text/plain".to_owned(), String::new())
    } else if path == "/witness.js" {
        (
            String::new(),
            "text/javascript".to_owned(),
            TELLS.to_owned(),
        )
    } else {
        let answer = reqwest::get(format!("http://{upstream}{path}"))
            .await
            .unwrap();
        let header = |name: &str| {
            let value = answer.headers().get(name);
            value
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
                .to_owned()
        };
        let (policy, media) = (header("content-security-policy"), header("content-type"));
        let body = answer.text().await.unwrap();
        let witness = "<script src=\"witness.js\"></script></head>";
        (policy, media, body.replace("</head>", witness))
    };
    let policy = match policy.is_empty() {
        true => policy,
        false => format!("content-security-policy: {policy}\r\n"),
    };
    let answer = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {media}\r\nx-content-type-options: nosniff\r\n{policy}\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let _ = socket.write_all(answer.as_bytes()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_the_interface_shows_all_routes_under_its_policy() {
    let cluster = cluster_of(&[]).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (told, upstream) = (RequestLog::default(), cluster.coordinators[0].http.clone());
    let (mut server, heard) = (JoinSet::new(), told.clone());
    server.spawn(async move {
        let mut visits = JoinSet::new();
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            visits.spawn(page_with_a_witness(socket, upstream.clone(), heard.clone()));
        }
    });
    let _browser = Browser::open(&format!("http://{address}/docs"));
    let shown = volley_tests::until("the page shows its routes", || {
        let told = told.lock().unwrap().first().map(|(body, _)| body.clone());
        std::future::ready(told)
    });
    let shown: Value = serde_json::from_str(&shown.await).unwrap();
    assert!(80 < shown["done"]["shown"].as_u64().unwrap_or(0), "{shown}");
    assert_eq!(
        shown["done"]["bold"], "inline-block",
        "its style is loaded: {shown}"
    );
}
