//! Generations whose worker dies or freezes in the middle: another replica goes on, and the client
//! sees no seam.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use volley_tests::cluster::Cluster;
use volley_tests::{steady_decoder, until};

/// How long a stream whose worker is lost may say nothing. Promised are 5 s, which `lost_workers`
/// measures; here others use the machine. Without the cluster's own look at workers it were 15.
const SILENCE: Duration = Duration::from_secs(12);
const CHAT: &str = "/v1/chat/completions";
const PLAIN: &str = "/v1/completions";
const OPENSEARCH: &str = "/_plugins/_ml/models/teller/_predict/stream";
const FAKE: &str = "/_plugins/_ml/models/drill/_predict/stream";

/// What a client was sent.
struct ReceivedStream {
    events: Vec<String>,
    /// The longest time without a byte.
    longest: Duration,
}

/// A client that reads in the background, to the end or until it is told to stop.
struct Listener {
    events: Arc<AtomicUsize>,
    stop: watch::Sender<bool>,
    task: JoinHandle<ReceivedStream>,
}

impl Listener {
    fn count(&self) -> usize {
        self.events.load(Ordering::Relaxed)
    }

    /// What it has heard so far.
    async fn stopped(self) -> ReceivedStream {
        self.stop.send_replace(true);
        self.task.await.unwrap()
    }
}

/// An event without what each stream has of its own.
fn plain(event: &str) -> String {
    let json = event.strip_prefix("data: ").map(serde_json::from_str);
    let Some(Ok(Value::Object(mut event))) = json else {
        return event.to_owned();
    };
    event.remove("id");
    event.remove("created");
    Value::Object(event).to_string()
}

fn listen(cluster: &Cluster, path: &str, body: &Value) -> Listener {
    // The second client of a process finds it installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = format!("http://{}{path}", cluster.coordinators[0].http);
    let request = reqwest::Client::new()
        .post(url)
        .header("content-type", "application/json")
        .body(body.to_string());
    let events = Arc::new(AtomicUsize::new(0));
    let count = events.clone();
    let stop = watch::Sender::new(false);
    let mut stopped = stop.subscribe();
    let task = tokio::spawn(async move {
        let mut response = request.send().await.unwrap();
        assert_eq!(response.status(), 200);
        let (mut text, mut last) = (Vec::new(), Instant::now());
        let mut longest = Duration::ZERO;
        loop {
            let piece = tokio::select! {
                Ok(_) = stopped.wait_for(|stop| *stop) => break,
                piece = response.chunk() => piece.unwrap(),
            };
            let Some(piece) = piece else { break };
            longest = longest.max(last.elapsed());
            last = Instant::now();
            let ends = |bytes: &[u8]| bytes.windows(2).filter(|pair| *pair == b"\n\n").count();
            text.extend_from_slice(&piece);
            count.fetch_add(ends(&piece), Ordering::Relaxed);
        }
        if *stopped.borrow() {
            // What it was in the middle of.
            let whole = text.windows(2).rposition(|pair| pair == b"\n\n");
            text.truncate(whole.map_or(0, |at| at + 2));
        }
        let text = String::from_utf8(text).unwrap();
        let events = text
            .split_terminator("\n\n")
            .filter(|event| !event.starts_with(':'));
        ReceivedStream {
            events: events.map(plain).collect(),
            longest: longest.max(last.elapsed()),
        }
    });
    Listener { events, stop, task }
}

/// Long answers of every kind that can be gone on with, in two dialects.
fn requests() -> Vec<(&'static str, Value)> {
    let chat = |said: &str, more: Value| {
        let mut body = json!({
            "model": "teller", "stream": true, "max_tokens": 900, "ignore_eos": true,
            "stream_options": { "include_usage": true },
            "messages": [{ "role": "user", "content": said }],
        });
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    let opensearch = |said: &str, more: Value| {
        let mut parameters = json!({ "prompt": said, "max_tokens": 900, "ignore_eos": true });
        parameters
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({ "parameters": parameters })
    };
    let drawn = json!({ "seed": 5, "temperature": 0.9, "top_p": 0.9, "frequency_penalty": 0.3 });
    let twice = json!({
        "model": "teller", "stream": true, "max_tokens": 450, "ignore_eos": true, "n": 2,
        "seed": 9, "temperature": 0.8, "prompt": "Tell me a story about a bear.",
    });
    vec![
        (CHAT, chat("Tell me a story about a fox.", json!({}))),
        (CHAT, chat("Tell me a story about an owl.", drawn.clone())),
        (
            CHAT,
            chat("Who are you?", json!({ "stop": ["nowhere to be seen"] })),
        ),
        (
            OPENSEARCH,
            opensearch("Tell me a story about a frog.", json!({})),
        ),
        (OPENSEARCH, opensearch("Hello!", drawn)),
        (
            OPENSEARCH,
            opensearch(
                "Tell me a story about a cat.",
                json!({ "stop": ["\n\n\n"] }),
            ),
        ),
        (PLAIN, twice),
    ]
}

/// Answers that end when the client has had enough: whenever a worker is lost, they run.
fn endless() -> Vec<(&'static str, Value)> {
    let said = ["bear", "bee", "bird", "boar"].map(|who| format!("Tell me a story about a {who}."));
    let chat = |said: &String| {
        let body = json!({
            "model": "teller", "stream": true, "max_tokens": 16_000, "ignore_eos": true,
            "messages": [{ "role": "user", "content": said }],
        });
        (CHAT, body)
    };
    said.iter().map(chat).collect()
}

/// Each has gone on behind what it had, and is to the end the same as one that nothing happens to.
async fn endless_seamless(cluster: &Cluster, all: Vec<Listener>) {
    let goals: Vec<_> = all.iter().map(|it| it.count() + 20).collect();
    until("the endless ones go on", || async {
        let goes_on = |(it, goal): (&Listener, &usize)| *goal <= it.count();
        all.iter().zip(&goals).all(goes_on).then_some(())
    })
    .await;
    for (listener, (path, body)) in all.into_iter().zip(endless()) {
        let heard = listener.stopped().await.events;
        let again = listen(cluster, path, &body);
        until("it is told again", || async {
            (heard.len() < again.count()).then_some(())
        })
        .await;
        let again = again.stopped().await.events;
        let differs = heard
            .iter()
            .zip(&again)
            .position(|(one, other)| one != other);
        let at = differs.map(|at| (at, &heard[at], &again[at]));
        assert_eq!(at, None, "{path} {body}");
    }
}

async fn tellers() -> Cluster {
    tellers_with("").await
}

/// The same with further lines in the workers' files.
async fn tellers_with(lines: &str) -> Cluster {
    let mut cluster = Cluster::new(1, 2);
    for node in &cluster.workers {
        let text = std::fs::read_to_string(&node.config).unwrap();
        std::fs::write(&node.config, text + lines).unwrap();
    }
    cluster.run().await;
    let path = steady_decoder::model(cluster.folder());
    let model = json!({ "name": "teller", "function_name": "onnx", "path": path });
    cluster.deploy(&model, 2).await;
    let drill = json!({ "name": "drill", "function_name": "fake" });
    cluster.deploy(&drill, 2).await;
    cluster
}

/// Each request alone, on a cluster in which nothing happens.
async fn undisturbed(cluster: &Cluster) -> Vec<ReceivedStream> {
    let mut all = Vec::new();
    for (path, body) in requests() {
        all.push(listen(cluster, path, &body).task.await.unwrap());
    }
    all
}

async fn metrics(address: &str) -> String {
    let asked = reqwest::get(format!("http://{address}/metrics")).await;
    asked.unwrap().text().await.unwrap()
}

fn value(metrics: &str, sample: &str) -> u32 {
    let lines = metrics.lines();
    let found = lines.filter_map(|line| line.strip_prefix(sample)).next();
    found.map_or(0, |value| value.trim().parse().unwrap())
}

/// Begins requests and waits until each has had some of its answer.
async fn begun(cluster: &Cluster, requests: &[(&str, Value)]) -> Vec<Listener> {
    let all: Vec<_> = requests
        .iter()
        .map(|(path, body)| listen(cluster, path, body))
        .collect();
    until("every stream runs", || async {
        let runs = |it: &Listener| 3 < it.count();
        all.iter().all(runs).then_some(())
    })
    .await;
    all
}

/// The place of the worker that tells the most stories.
async fn busier(cluster: &Cluster) -> usize {
    let mut running = Vec::new();
    for worker in &cluster.workers {
        let text = metrics(&worker.http).await;
        running.push(value(&text, "volley_active_streams{model=\"teller\"} "));
    }
    let busier = usize::from(running[0] < running[1]);
    assert!(0 < running[busier], "{running:?}");
    busier
}

/// The events, those of each answer for itself where there are several, which come in any order
/// beside each other.
fn sorted(events: &[String], body: &Value) -> Vec<String> {
    let mut events = events.to_vec();
    if body.get("n").is_some() {
        events.sort_by_key(|event| {
            let json: Value = serde_json::from_str(event).unwrap_or_default();
            json["choices"][0]["index"].as_u64().unwrap_or(u64::MAX)
        });
    }
    events
}

/// Every stream is the undisturbed one, event for event.
async fn all_seamless(all: Vec<Listener>, expected: &[ReceivedStream], within: Duration) {
    for ((listener, expected), (path, body)) in all.into_iter().zip(expected).zip(requests()) {
        let heard = listener.task.await.unwrap();
        let (events, expected) = (
            sorted(&heard.events, &body),
            sorted(&expected.events, &body),
        );
        let mut pairs = events.iter().zip(&expected);
        let differs = pairs.position(|(one, other)| one != other);
        let at = differs.map(|at| (at, &events[at], &expected[at]));
        assert_eq!(at, None, "{path} {body}");
        assert_eq!(events.len(), expected.len(), "{path} {body}");
        assert!(
            heard.longest < within,
            "{path}: silent for {:?}",
            heard.longest
        );
    }
}

async fn continued(cluster: &Cluster, result: &str) -> u32 {
    let sample = format!("volley_stream_continuations_total{{result=\"{result}\"}} ");
    value(&metrics(&cluster.coordinators[0].http).await, &sample)
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_worker_that_is_killed_go_on_at_another_without_a_seam() {
    let mut cluster = tellers().await;
    let expected = undisturbed(&cluster).await;
    assert!(expected.iter().all(|heard| 100 < heard.events.len()));
    let endless = begun(&cluster, &self::endless()).await;
    let busier = busier(&cluster).await;
    let all = begun(&cluster, &requests()).await;
    cluster.workers[busier].kill().await;
    all_seamless(all, &expected, SILENCE).await;
    endless_seamless(&cluster, endless).await;
    let count = continued(&cluster, "continued").await;
    assert!(0 < count, "the worker had streams");
    for other in ["impossible", "failed", "spent"] {
        assert_eq!(continued(&cluster, other).await, 0, "{other}");
    }

    // The other one dies too: nobody is left to go on, and each stream ends in one error.
    let all = begun(&cluster, &self::endless()).await;
    cluster.workers[1 - busier].kill().await;
    for listener in all {
        let heard = listener.task.await.unwrap();
        let errors = heard
            .events
            .iter()
            .filter(|event| event.contains("\"error\""))
            .count();
        assert_eq!(errors, 1, "{:?}", heard.events.last());
        assert!(heard.events.last().unwrap().contains("\"error\""));
    }
    assert!(0 < continued(&cluster, "no_replica").await);
}

/// The processes that a process has started.
fn children(parent: u32) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap();
    let names = processes.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let is_child = |name: &String| {
        // One that has ended meanwhile is nobody's. Its parent stands behind its name and state.
        let stat = std::fs::read_to_string(format!("/proc/{name}/stat")).unwrap_or_default();
        let rest = stat.rsplit(')').next().unwrap_or_default();
        rest.split_whitespace().nth(1) == Some(parent.to_string().as_str())
    };
    names.filter(is_child).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_model_whose_own_process_crashes_go_on_at_another_replica() {
    let cluster = tellers_with("\n[onnx]\nisolation = \"process\"\n").await;
    let expected = undisturbed(&cluster).await;
    let endless = begun(&cluster, &self::endless()).await;
    let busier = busier(&cluster).await;
    let all = begun(&cluster, &requests()).await;
    let process = cluster.workers[busier].process.as_ref().unwrap();
    let [model] = &children(process.pid().unwrap())[..] else {
        panic!("one process for one model");
    };
    let sent = std::process::Command::new("kill")
        .args(["-ABRT", model])
        .status();
    assert!(sent.unwrap().success());
    all_seamless(all, &expected, SILENCE).await;
    endless_seamless(&cluster, endless).await;
    assert!(0 < continued(&cluster, "continued").await);
    for other in ["impossible", "failed", "spent", "no_replica"] {
        assert_eq!(continued(&cluster, other).await, 0, "{other}");
    }
    // The process comes back, and its replica serves again.
    until("there is a process again", || async {
        (children(process.pid()?).len() == 1).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_worker_that_freezes_go_on_or_end_in_an_error_within_five_seconds() {
    let cluster = tellers().await;
    let expected = undisturbed(&cluster).await;
    let slow = json!({ "parameters": { "prompt": "x", "chunks": 1_000, "delay_ms": 20 } });
    // All have begun: what has not goes to another worker without a word.
    let drills = begun(&cluster, &vec![(FAKE, slow); 6]).await;
    let endless = begun(&cluster, &self::endless()).await;
    let busier = busier(&cluster).await;
    let all = begun(&cluster, &requests()).await;
    let text = metrics(&cluster.workers[busier].http).await;
    let struck = value(&text, "volley_active_streams{model=\"drill\"} ");
    cluster.workers[busier]
        .process
        .as_ref()
        .unwrap()
        .signal("-STOP");
    all_seamless(all, &expected, SILENCE).await;
    endless_seamless(&cluster, endless).await;
    assert!(0 < continued(&cluster, "continued").await);
    let mut broken = 0;
    for drill in drills {
        let heard = drill.task.await.unwrap();
        let errors = heard
            .events
            .iter()
            .filter(|event| event.contains("\"error\""))
            .count();
        assert!(errors <= 1, "one error, not {errors}");
        assert!(heard.longest < SILENCE, "{:?}", heard.longest);
        let last = heard.events.last().unwrap();
        assert!(
            last.contains("\"error\"") || last.contains("\"is_last\":true"),
            "{last}"
        );
        broken += errors;
    }
    assert_eq!(
        broken as u32, struck,
        "each stream of the frozen worker, and no other"
    );
    assert_eq!(continued(&cluster, "impossible").await, struck);
    cluster.workers[busier]
        .process
        .as_ref()
        .unwrap()
        .signal("-CONT");
}
