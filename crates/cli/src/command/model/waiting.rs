//! Waiting for a deployment, as long as it makes progress.

use std::time::{Duration, Instant};

use anyhow::bail;
use volley_client::{Client, ModelInfo, Status, Unplaced};

use super::super::explain;
use crate::terminal::Terminal;

/// Interval between status requests.
const LOOK: Duration = Duration::from_millis(100);
/// Interval between progress lines about fetches.
const TELL: Duration = Duration::from_secs(5);
/// Maximum time without progress.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long a registration with deployment waits for an early failure.
const MOMENT: Duration = Duration::from_secs(2);
/// How long replicas may have no worker until waiting ends: workers of a starting cluster join
/// within this time.
const JOINING: Duration = Duration::from_secs(5);

/// The progress of one worker in fetching a version, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FetchProgress {
    worker: String,
    bytes: u64,
    total_bytes: u64,
}

impl FetchProgress {
    /// The fetch progress of `model` while it is being deployed. Empty if the caller may not read
    /// the cluster status.
    pub(super) async fn now(client: &Client, model: &ModelInfo) -> Vec<Self> {
        if !matches!(&*model.model_state, "DEPLOYING" | "PARTIALLY_DEPLOYED") {
            return Vec::new();
        }
        match client.status().await {
            Ok(status) => Self::of(&status, model),
            Err(_) => Vec::new(),
        }
    }

    fn of(status: &Status, model: &ModelInfo) -> Vec<Self> {
        let workers = status.workers.iter();
        let replicas =
            workers.flat_map(|worker| worker.replicas.iter().map(move |it| (worker, it)));
        let fetches = replicas.filter_map(|(worker, replica)| {
            let of_model = replica.model == model.model_id
                && replica.version.to_string() == model.model_version;
            let fetch = replica.fetch.filter(|_| of_model)?;
            Some(Self {
                worker: worker.id.clone(),
                bytes: fetch.bytes,
                total_bytes: fetch.total_bytes,
            })
        });
        fetches.collect()
    }

    /// The progress as text.
    pub(super) fn told(&self) -> String {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        format!(
            "{}: {:.1} of {:.1} MiB",
            self.worker,
            mib(self.bytes),
            mib(self.total_bytes)
        )
    }
}

/// The reason why replicas have no worker, and since when.
#[derive(Default)]
struct Obstacle {
    known: Option<(Unplaced, Instant)>,
}

impl Obstacle {
    /// Records the state at `now`. Returns the line to print if the reason is new.
    ///
    /// # Errors
    /// When the deployment cannot succeed with the workers of the cluster.
    fn update(&mut self, info: &ModelInfo, now: Instant) -> anyhow::Result<Option<String>> {
        let Some(unplaced) = &info.unplaced else {
            self.known = None;
            return Ok(None);
        };
        let model = &info.model_id;
        match &self.known {
            Some((known, since)) if known == unplaced => {
                if unplaced.permanent && JOINING <= now.saturating_duration_since(*since) {
                    bail!(
                        "{model} cannot be deployed now: {}. It is deployed once other workers \
                         join; otherwise change its deployment with `volley model deploy {model}`",
                        unplaced.reason
                    );
                }
                Ok(None)
            }
            _ => {
                self.known = Some((unplaced.clone(), now));
                Ok(Some(format!("{model} waits: {}", unplaced.reason)))
            }
        }
    }
}

/// Waits until `model` is deployed, and prints the progress of fetches and why replicas have no
/// worker.
///
/// # Errors
/// The errors of the workers when they cannot load the model. Also when no worker can hold a
/// replica, and after ten minutes without fetch progress.
pub(super) async fn until_deployed(client: &Client, model: &str) -> anyhow::Result<()> {
    let mut terminal = Terminal::stderr();
    let (mut moved, mut told) = (Instant::now(), Instant::now());
    let (mut known, mut obstacle) = (Vec::new(), Obstacle::default());
    loop {
        let info = client.model(model).await.map_err(explain)?;
        match info.model_state.as_str() {
            "DEPLOYED" => return Ok(()),
            "DEPLOY_FAILED" => bail!("{}", failed(model, &info)),
            _ if stopped(&info) => bail!("{}", failed(model, &info)),
            _ if moved.elapsed() < PATIENCE => {}
            _ => bail!("the model made no progress for 10 minutes; see `volley status`"),
        }
        if let Some(line) = obstacle.update(&info, Instant::now())? {
            terminal.line(&line)?;
        }
        tokio::time::sleep(LOOK).await;
        if told.elapsed() < TELL {
            continue;
        }
        told = Instant::now();
        let fetched = FetchProgress::now(client, &info).await;
        if fetched != known {
            moved = Instant::now();
            for fetch in &fetched {
                terminal.line(&format!("fetching     {}", fetch.told()))?;
            }
            known = fetched;
        }
    }
}

/// Whether the rollout to this version has stopped after a failure.
fn stopped(info: &ModelInfo) -> bool {
    let failure = info.failure.as_ref();
    failure.is_some_and(|failure| failure.version.to_string() == info.model_version)
}

fn failed(model: &str, info: &ModelInfo) -> String {
    if let Some(failure) = info.failure.as_ref() {
        let next = &failure.next_command;
        return format!(
            "{model} could not be deployed: {}. Next: `{next}`",
            failure.message
        );
    }
    let reasons = info.failures.iter();
    let reasons: Vec<_> = reasons
        .map(|(worker, reason)| format!("{worker}: {reason}"))
        .collect();
    format!("{model} could not be loaded: {}", reasons.join("; "))
}

/// Waits two seconds for an early failure of `model`. Returns whether it was deployed within that
/// time.
///
/// # Errors
/// The errors of the workers when they cannot load the model.
pub(super) async fn fails_early(client: &Client, model: &str) -> anyhow::Result<bool> {
    let by = Instant::now() + MOMENT;
    loop {
        let info = client.model(model).await.map_err(explain)?;
        match info.model_state.as_str() {
            "DEPLOYED" => return Ok(true),
            "DEPLOY_FAILED" => bail!("{}", failed(model, &info)),
            _ if stopped(&info) => bail!("{}", failed(model, &info)),
            _ if by <= Instant::now() => {
                if let Some(line) = Obstacle::default().update(&info, by)? {
                    Terminal::stderr().line(&line)?;
                }
                return Ok(false);
            }
            _ => tokio::time::sleep(LOOK).await,
        }
    }
}

#[cfg(test)]
mod tests;
