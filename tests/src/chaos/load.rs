//! Writers and streaming clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use serde_json::json;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use volley_client::{Client, ClientError};

use super::history::{Outcome, Registry, Write};
use super::streams::{Ending, Reader};

/// Writers at a time: enough for the floor in a debug build, with a leader lost every minute.
const WRITERS: usize = 20;
/// Readers of streams at a time.
const READERS: usize = 8;
/// Versions that one model gets before the writers take the next; a registry holds a thousand.
const VERSIONS: u64 = 900;
/// Models that are written to at a time.
const MODELS: u64 = 4;
/// Between two writes of one writer. The registry keeps everything: more would measure how large
/// it becomes.
const PAUSE: Duration = Duration::from_millis(50);
/// Reads at a time, when everything is read in the end.
const READS: usize = 16;
/// How long a coordinator may take to show what it has acknowledged.
const SOON: Duration = Duration::from_secs(20);
/// Longer than the cluster's own limit on a write: after this nobody knows.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// A stream that is silent for so long hangs. The cluster's own limits are far below.
const SILENCE: Duration = Duration::from_secs(15);
/// Chunks of a stream, and the time between two of them.
const CHUNKS: usize = 40;
const CHUNK_MS: u64 = 25;

/// The model that streams.
pub const DRILL: &str = "drill";
/// The model whose versions only show that a coordinator takes writes.
pub const PROBE: &str = "probe";

/// One stream, as its reader saw it.
#[derive(Clone, Debug)]
pub struct StreamOutcome {
    /// When it was asked for, since the run began.
    pub asked: Duration,
    /// When it ended.
    pub ended: Duration,
    /// Through which coordinator.
    pub coordinator: usize,
    /// How.
    pub ending: Ending,
}

/// All that the clients saw.
#[derive(Debug, Default)]
pub struct Observations {
    /// Every write.
    pub writes: Mutex<Vec<Write>>,
    /// Every stream.
    pub streams: Mutex<Vec<StreamOutcome>>,
    /// Own writes that their writer could not read back at the coordinator that acknowledged
    /// them.
    pub stale: Mutex<Vec<String>>,
    /// Those that were not there when they were read at once.
    pub late: Mutex<Vec<Late>>,
}

/// A write that could not be read at once where it had been acknowledged.
#[derive(Clone, Debug)]
pub struct Late {
    /// At which coordinator.
    pub coordinator: usize,
    /// When it was read, since the run began.
    pub at: Duration,
}

/// Clients at work, until they are told to stop.
#[derive(Debug)]
pub struct Load {
    /// What they saw so far.
    pub seen: Arc<Observations>,
    began: Instant,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

#[derive(Clone)]
struct Hand {
    clients: Arc<Vec<Client>>,
    seen: Arc<Observations>,
    began: Instant,
    stop: Arc<AtomicBool>,
    next: Arc<AtomicU64>,
}

impl Load {
    /// Starts the clients of these coordinators.
    #[must_use]
    pub fn start(clients: Vec<Client>, began: Instant) -> Self {
        let (seen, stop) = (Arc::<Observations>::default(), Arc::<AtomicBool>::default());
        let hand = Hand {
            clients: Arc::new(clients),
            seen: seen.clone(),
            began,
            stop: stop.clone(),
            next: Arc::default(),
        };
        let mut tasks = JoinSet::new();
        for _ in 0..WRITERS {
            tasks.spawn(hand.clone().write());
        }
        for index in 0..READERS {
            tasks.spawn(hand.clone().read(index));
        }
        Self {
            seen,
            began,
            stop,
            tasks,
        }
    }

    /// Since the run began.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Lets every client end what it does.
    pub async fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while self.tasks.join_next().await.is_some() {}
    }
}

impl Hand {
    fn runs(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    async fn write(self) {
        while self.runs() {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let model = format!("m{}-{}", number / (VERSIONS * MODELS), number % MODELS);
            let payload = format!("w{number}");
            let at = fastrand(number, self.clients.len());
            let client = &self.clients[at];
            let body = json!({ "name": model, "function_name": "text", "description": payload });
            let sent = self.began.elapsed();
            let answer = tokio::time::timeout(WRITE_TIMEOUT, client.register(&body)).await;
            let outcome = match &answer {
                Ok(Ok(made)) => made
                    .model_version
                    .parse()
                    .map_or(Outcome::Unknown, Outcome::Acked),
                Ok(Err(error)) => outcome(error),
                Err(_) => Outcome::Unknown,
            };
            let ended = self.began.elapsed();
            if let Outcome::Acked(version) = outcome
                && number.is_multiple_of(4)
            {
                self.read_back(at, &model, version, &payload).await;
            }
            self.seen.writes.lock().await.push(Write {
                model,
                payload,
                sent,
                ended,
                outcome,
            });
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// What was acknowledged can be read where it was acknowledged: at once, and soon where that
    /// coordinator was started again meanwhile.
    async fn read_back(&self, coordinator: usize, model: &str, version: u32, payload: &str) {
        let name = format!("{model}:{version}");
        let (client, by) = (&self.clients[coordinator], Instant::now() + SOON);
        let mut first = true;
        let stale = loop {
            let read = tokio::time::timeout(WRITE_TIMEOUT, client.model(&name)).await;
            match read {
                Ok(Ok(info)) if info.description.as_deref() == Some(payload) => return,
                Ok(Ok(info)) => {
                    break format!("{name} reads {:?}, not {payload}", info.description);
                }
                Ok(Err(ClientError::Refused { status: 404, .. })) if by < Instant::now() => {
                    break format!("{name} was acknowledged and is not found within {SOON:?}");
                }
                Ok(Err(ClientError::Refused { status: 404, .. })) => {
                    if std::mem::take(&mut first) {
                        let at = self.began.elapsed();
                        self.seen.late.lock().await.push(Late { coordinator, at });
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                // Not answered at all: nothing was read.
                Ok(Err(_)) | Err(_) => return,
            }
        };
        self.seen.stale.lock().await.push(stale);
    }

    async fn read(self, index: usize) {
        let mut round = index as u64;
        while self.runs() {
            round = round.wrapping_add(READERS as u64);
            let coordinator = fastrand(round, self.clients.len());
            let asked = self.began.elapsed();
            let ending = self.follow(&self.clients[coordinator], round).await;
            let not_begun = matches!(ending, Ending::NotBegun(_));
            self.seen.streams.lock().await.push(StreamOutcome {
                asked,
                ended: self.began.elapsed(),
                coordinator,
                ending,
            });
            if not_begun {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }

    async fn follow(&self, client: &Client, round: u64) -> Ending {
        let expected: String = (0..CHUNKS).map(|n| format!("{round}.{n} ")).collect();
        let mut reader = Reader::new(expected, self.began.elapsed());
        let parameters = json!({
            "prompt": "x", "chunks": CHUNKS, "delay_ms": CHUNK_MS, "text": format!("{round}.{{n}} "),
        });
        let opened = tokio::time::timeout(SILENCE, client.stream(DRILL, &parameters)).await;
        let mut stream = match opened {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return reader.end(Some(&error), self.began.elapsed()),
            Err(_) => return Ending::Violated("no answer at all".to_owned()),
        };
        loop {
            match tokio::time::timeout(SILENCE, stream.next()).await {
                Ok(Some(Ok(text))) => {
                    if let Err(violation) = reader.text(&text, self.began.elapsed()) {
                        return violation;
                    }
                }
                Ok(Some(Err(error))) => return reader.end(Some(&error), self.began.elapsed()),
                Ok(None) => return reader.end(None, self.began.elapsed()),
                Err(_) => return Ending::Violated("a stream that hangs".to_owned()),
            }
        }
    }
}

/// What an error says about a write. Only what was refused before it could be proposed is known
/// not to have been applied.
fn outcome(error: &ClientError) -> Outcome {
    match error {
        ClientError::Connect(..) => Outcome::Refused,
        ClientError::Refused { status, .. } if (400..500).contains(status) => Outcome::Refused,
        _ => Outcome::Unknown,
    }
}

/// A place below `limit` that looks random and is the same in every run.
fn fastrand(number: u64, limit: usize) -> usize {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    usize::try_from(mixed).unwrap_or(0) % limit.max(1)
}

/// Everything that the writers may have written, as a coordinator shows it.
///
/// # Errors
/// When it cannot be read.
pub async fn registry(client: &Client) -> Result<Registry, ClientError> {
    let mut names = Vec::new();
    for model in client.models().await? {
        if ![DRILL, PROBE].contains(&model.model_id.as_str()) {
            let whole = client.model(&model.model_id).await?;
            names.extend(
                whole
                    .versions
                    .into_iter()
                    .map(|v| (whole.model_id.clone(), v)),
            );
        }
    }
    let mut registry = Registry::new();
    let reads = names.into_iter().map(|(model, version)| async move {
        let info = client.model(&format!("{model}:{version}")).await?;
        Ok::<_, ClientError>((model, version, info.description.unwrap_or_default()))
    });
    let mut reads = futures::stream::iter(reads).buffer_unordered(READS);
    while let Some(read) = reads.next().await {
        let (model, version, payload) = read?;
        registry.entry(model).or_default().insert(version, payload);
    }
    Ok(registry)
}
