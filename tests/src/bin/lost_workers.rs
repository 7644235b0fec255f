//! `lost_workers`: kills and freezes workers under streams, again and again, and counts what the
//! clients saw. `docs/evidence/failover.md`, "Lost workers".

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

use std::fmt::Write;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use volley_client::Client;
use volley_tests::cluster::{Cluster, tell_with};
use volley_tests::{steady_decoder, until};

const TELLER: &str = "teller";
const DRILL: &str = "drill";
/// Of each kind, in each round.
const STREAMS: usize = 6;
/// Every so many rounds the worker is frozen instead of killed.
const FROZEN: usize = 4;

/// Kills and freezes workers under streams, and counts what the clients saw.
#[derive(Debug, Parser)]
struct Arguments {
    /// Goes on until at least so many streams have lost their worker.
    #[arg(long, default_value_t = 100)]
    streams: u32,
}

/// What one client saw.
struct ClientRun {
    text: String,
    error: bool,
    /// Ended without an error and without its last row.
    silent: bool,
    /// The longest time without text.
    longest: Duration,
    ended: Instant,
}

/// One stream, and the text that it has when nothing happens.
struct Running {
    expected: String,
    task: JoinHandle<ClientRun>,
    pieces: watch::Receiver<usize>,
}

#[derive(Default)]
struct Tally {
    rounds: usize,
    struck: u32,
    continued: u32,
    told: u32,
    wrong: u32,
    silent: u32,
    /// Of all streams of a round, since a client cannot know whether its own was struck.
    pauses: Vec<Duration>,
    frozen_pauses: Vec<Duration>,
    told_after: Vec<Duration>,
    frozen_told_after: Vec<Duration>,
}

fn stories() -> Vec<Value> {
    let story = |animal: &str, more: Value| {
        let prompt = format!("Tell me a story about {animal}.");
        let mut body = json!({ "prompt": prompt, "max_tokens": 900, "ignore_eos": true });
        if let (Some(body), Some(more)) = (body.as_object_mut(), more.as_object()) {
            body.extend(more.clone());
        }
        body
    };
    let drawn = |seed: u32| json!({ "seed": seed, "temperature": 0.9, "top_p": 0.9 });
    let animals = ["a fox", "an owl", "a bear", "a frog", "a cat", "a mouse"];
    let all = (0..).zip(animals).map(|(seed, animal)| match seed % 2 {
        0 => story(animal, json!({})),
        _ => story(animal, drawn(seed)),
    });
    all.take(STREAMS).collect()
}

fn drill() -> Value {
    json!({ "prompt": "x", "chunks": 300, "delay_ms": 20, "text": "n{n} " })
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut cluster = Cluster::start(1, 3).await;
    let path = steady_decoder::model(cluster.folder());
    let model = json!({ "name": TELLER, "function_name": "onnx", "path": path });
    cluster.deploy(&model, 3).await;
    let fake = json!({ "name": DRILL, "function_name": "fake" });
    cluster.deploy(&fake, 3).await;
    let client = cluster.client(0);
    let mut expected = Vec::new();
    for body in stories() {
        let text = tell_with(&client, TELLER, &body).await;
        expected.push((TELLER, body, text.expect("nothing happens yet")));
    }
    let text = tell_with(&client, DRILL, &drill()).await;
    let text = text.expect("nothing happens yet");
    expected.extend((0..STREAMS).map(|_| (DRILL, drill(), text.clone())));

    let mut tally = Tally::default();
    while tally.struck < arguments.streams {
        round(&mut cluster, &client, &expected, &mut tally).await;
        say(&format!(
            "round {}: {} struck\n",
            tally.rounds, tally.struck
        ));
    }
    say(&tally.report());
    if tally.wrong == 0 && tally.silent == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

async fn round(
    cluster: &mut Cluster,
    client: &Client,
    expected: &[(&str, Value, String)],
    tally: &mut Tally,
) {
    let before = counts(cluster).await;
    let mut all = Vec::new();
    for (model, body, text) in expected {
        all.push(begin(client.clone(), model, body, text));
    }
    for running in &mut all {
        let _ = running.pieces.wait_for(|pieces| 3 < *pieces).await;
    }
    let victim = tally.rounds % cluster.workers.len();
    let freeze = tally.rounds % FROZEN == FROZEN - 1;
    tally.rounds += 1;
    let worker = &mut cluster.workers[victim];
    match &worker.process {
        Some(process) if freeze => process.signal("-STOP"),
        _ => worker.kill().await,
    }
    let struck = Instant::now();
    for running in all {
        let seen = running.task.await.expect("a client ends");
        tally.silent += u32::from(seen.silent);
        let whole = seen.text == running.expected;
        let cut = seen.error && running.expected.starts_with(&seen.text);
        tally.wrong += u32::from(!whole && !cut && !seen.silent);
        if seen.error {
            tally.told += 1;
            let after = seen.ended.saturating_duration_since(struck);
            let list = if freeze {
                &mut tally.frozen_told_after
            } else {
                &mut tally.told_after
            };
            list.push(after);
        } else {
            let list = if freeze {
                &mut tally.frozen_pauses
            } else {
                &mut tally.pauses
            };
            list.push(seen.longest);
        }
    }
    let after = counts(cluster).await;
    tally.continued += after.0 - before.0;
    tally.struck += after.1 - before.1;
    let worker = &mut cluster.workers[victim];
    worker.kill().await;
    worker.start();
    let ready = |status: &volley_client::Status| {
        let models = status.models.iter();
        models.filter(|model| model.ready_replicas == 3).count() == 2
    };
    // It has to be heard anew first.
    let id = cluster.workers[victim].name.clone();
    until("the worker is heard again", || async {
        let status = client.status().await.ok()?;
        let mut workers = status.workers.iter();
        let heard = workers.any(|worker| worker.id == id && worker.liveness == "alive");
        (heard && ready(&status)).then_some(())
    })
    .await;
}

fn begin(client: Client, model: &str, body: &Value, expected: &str) -> Running {
    let (count, pieces) = watch::channel(0);
    let (model, body) = (model.to_owned(), body.clone());
    let task = tokio::spawn(async move {
        let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
        let (mut text, mut error, mut silent) = (String::new(), false, false);
        match client.stream(&model, &body).await {
            Err(_) => error = true,
            Ok(mut stream) => {
                while let Some(piece) = stream.next().await {
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                    match piece {
                        Ok(piece) => text.push_str(&piece),
                        Err(volley_client::ClientError::Refused { .. }) => error = true,
                        // Cut off: neither an end nor a word about it.
                        Err(_) => silent = true,
                    }
                    count.send_modify(|count| *count += 1);
                }
            }
        }
        count.send_replace(usize::MAX);
        ClientRun {
            text,
            error,
            silent,
            longest,
            ended: Instant::now(),
        }
    });
    Running {
        expected: expected.to_owned(),
        task,
        pieces,
    }
}

/// Streams that went on elsewhere, and all that lost their worker, so far.
async fn counts(cluster: &Cluster) -> (u32, u32) {
    let url = format!("http://{}/metrics", cluster.coordinators[0].http);
    let text = volley_client::fetch(&url, 16 << 20).await;
    let text = String::from_utf8(text.expect("metrics")).expect("text");
    let samples = text.lines().filter_map(|line| {
        let rest = line.strip_prefix("volley_stream_continuations_total{result=\"")?;
        let (result, count) = rest.split_once("\"} ")?;
        Some((result.to_owned(), count.trim().parse::<u32>().ok()?))
    });
    samples.fold((0, 0), |(continued, all), (result, count)| {
        let went_on = if result == "continued" { count } else { 0 };
        (continued + went_on, all + count)
    })
}

impl Tally {
    fn report(&self) -> String {
        let mut text = format!(
            "{} rounds, every fourth with a frozen worker\n\
             streams that lost their worker: {}\n  continued: {}\n  told by one error: {}\n  \
             gaps or duplicates: {}\n  silent ends: {}\n",
            self.rounds, self.struck, self.continued, self.told, self.wrong, self.silent
        );
        let lists = [
            (
                "longest pause of a stream that ended whole, worker killed",
                &self.pauses,
            ),
            ("the same, worker frozen", &self.frozen_pauses),
            ("from the kill to the error", &self.told_after),
            ("from the freeze to the error", &self.frozen_told_after),
        ];
        for (what, list) in lists {
            let mut list = list.clone();
            list.sort_unstable();
            let at = |share: f64| {
                let index = (list.len().saturating_sub(1) as f64 * share).round() as usize;
                list.get(index).map_or(f64::NAN, Duration::as_secs_f64)
            };
            let _ = writeln!(
                text,
                "{what}: p50 {:.2} s, p99 {:.2} s, most {:.2} s ({} streams)",
                at(0.5),
                at(0.99),
                at(1.0),
                list.len()
            );
        }
        text
    }
}

fn say(text: &str) {
    // Nobody is left to be told when this fails.
    let _ = std::io::stdout().write_all(text.as_bytes());
}
