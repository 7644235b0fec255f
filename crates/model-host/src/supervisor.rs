//! Supervises the processes of one model, one after the other, until they end too often.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt;
use tokio::process::Child as Process;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use volley_backend::{Backend, LossFuture};
use volley_telemetry::Metrics;
use volley_types::registry::Assignment;
use volley_types::{
    ChunkStream, ErrorCode, ErrorOrigin, ModelName, ModelRef, Predict, PredictError,
    PredictRequest, Signature,
};

use crate::message::LoadReport;
use crate::process::{ProcessEnd, broke, code_of};

/// Time limit between the end of a stream and the report of the process's end.
const NEWS: Duration = Duration::from_secs(10);

/// The restart policy of a model's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restarts {
    /// The wait before the first restart; it doubles with each further end within `window`.
    pub first_wait: Duration,
    /// The maximum wait.
    pub longest_wait: Duration,
    /// Number of ends within `window` after which the model is lost.
    pub most: usize,
    /// The period for `most`.
    pub window: Duration,
}

impl Default for Restarts {
    fn default() -> Self {
        Self {
            first_wait: Duration::from_millis(100),
            longest_wait: Duration::from_secs(10),
            most: 5,
            window: Duration::from_secs(600),
        }
    }
}

/// A running process that has loaded its model.
pub struct Launched {
    /// The process. Dropping it kills the process.
    pub process: Process,
    /// Sends requests to it. A request that fails because the process ended has the code
    /// `Unavailable`, and no other request has it.
    pub client: Arc<dyn Predict>,
    /// Cancelled at the end of the connection to the process.
    pub gone: CancellationToken,
    /// The process' report about its model.
    pub report: LoadReport,
}

/// Starts the processes of one model.
#[async_trait]
pub trait Launch: Send + Sync + 'static {
    /// Starts a process and waits until it has loaded the model.
    ///
    /// # Cancel safety
    /// Dropping the future kills the process.
    ///
    /// # Errors
    /// The error of the load; `InvalidInput` if the process ended during it.
    async fn launch(&self) -> Result<Launched, PredictError>;
}

/// The state of the model.
#[derive(Clone)]
enum State {
    /// A running process that serves it.
    Up(Arc<dyn Predict>),
    /// The last process ended like this.
    Down(ProcessEnd),
    /// There will be no further restart.
    Lost(PredictError),
}

/// A model in a process that is restarted when it ends.
pub struct HostedModel {
    model: ModelName,
    report: LoadReport,
    signature: Signature,
    overhead_bytes: u64,
    life: Arc<Life>,
}

/// The processes of a model, until the last owner drops this. Streams are owners too.
struct Life {
    state: watch::Receiver<State>,
    _keeper: AbortOnDropHandle<()>,
}

/// Restarts the processes of a model, and counts their ends.
pub struct Supervisor {
    /// Starts the processes.
    pub launcher: Box<dyn Launch>,
    /// The model, for logs and metrics.
    pub assignment: Assignment,
    /// When to restart.
    pub restarts: Restarts,
    /// Counts the ends.
    pub metrics: Metrics,
}

impl HostedModel {
    /// The model of `launched`. `supervisor` restarts its process until the model is dropped;
    /// `overhead_bytes` is the memory of the process besides the model.
    ///
    /// # Errors
    /// Those of the process' signature.
    pub async fn new(
        supervisor: Supervisor,
        launched: Launched,
        overhead_bytes: u64,
    ) -> Result<Self, PredictError> {
        let Launched {
            process,
            client,
            gone,
            report,
        } = launched;
        let model = supervisor.assignment.model.clone();
        let signature = client.signature(&ModelRef::deployed(model.clone())).await?;
        let (sender, state) = watch::channel(State::Up(client));
        let keeper = tokio::spawn(supervisor.keep(process, gone, sender));
        Ok(Self {
            model,
            report,
            signature,
            overhead_bytes,
            life: Arc::new(Life {
                state,
                _keeper: AbortOnDropHandle::new(keeper),
            }),
        })
    }
}

impl HostedModel {
    /// Whether a process serves the model now; between two processes none does.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(*self.life.state.borrow(), State::Up(_))
    }
}

impl Backend for HostedModel {
    fn capacity(&self) -> usize {
        self.report.capacity
    }

    fn memory_bytes(&self) -> u64 {
        self.report.memory_bytes.saturating_add(self.overhead_bytes)
    }

    fn lost(&self) -> Option<LossFuture> {
        let mut state = self.life.state.clone();
        Some(Box::pin(async move {
            let lost = state.wait_for(|it| matches!(it, State::Lost(_))).await;
            match &*lost.ok()? {
                State::Lost(error) => Some(error.clone()),
                State::Up(_) | State::Down(_) => None,
            }
        }))
    }
}

#[async_trait]
impl Predict for HostedModel {
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        let mut news = self.life.state.clone();
        let state = news.borrow_and_update().clone();
        let client = match state {
            State::Up(client) => client,
            State::Down(how) => return Err(away(how)),
            State::Lost(error) => return Err(error),
        };
        match client.predict(request).await {
            Ok(answer) => {
                let mut begun = false;
                let judged = answer.map_batches(|batches| {
                    batches.then(move |item| {
                        begun |= item.is_ok();
                        judge_batch(item, news.clone(), begun)
                    })
                });
                Ok(judged.holding(self.life.clone()))
            }
            Err(error) => Err(judge(error, news, false).await),
        }
    }

    async fn signature(&self, _: &ModelRef) -> Result<Signature, PredictError> {
        Ok(self.signature.clone())
    }

    async fn models(&self) -> Vec<ModelName> {
        vec![self.model.clone()]
    }
}

fn judge_batch(
    item: volley_types::chunk::BatchResult,
    news: watch::Receiver<State>,
    begun: bool,
) -> Pin<Box<dyn Future<Output = volley_types::chunk::BatchResult> + Send>> {
    match item {
        Ok(batch) => Box::pin(std::future::ready(Ok(batch))),
        Err(error) => Box::pin(async move { Err(judge(error, news, begun).await) }),
    }
}

/// The error of a request: its own, or that of its process if the process ended. `begun` is whether
/// the answer had begun. `news` has already seen the state in which the request started.
async fn judge(error: PredictError, mut news: watch::Receiver<State>, begun: bool) -> PredictError {
    // Only a broken connection has this code; errors of models do not.
    if error.code != ErrorCode::Unavailable {
        return error;
    }
    match tokio::time::timeout(NEWS, news.changed()).await {
        Ok(Ok(())) => match &*news.borrow() {
            State::Down(how) => broke(*how, begun).with_source(error),
            State::Lost(lost) => lost.clone(),
            State::Up(_) => restarted(begun).with_source(error),
        },
        Ok(Err(_)) | Err(_) => error,
    }
}

fn restarted(begun: bool) -> PredictError {
    let message = "the model's process ended while it ran this request, and was restarted";
    PredictError::new(code_of(begun), message).with_origin(ErrorOrigin::Model)
}

/// The error of a request that arrives between two processes; another replica may serve it.
fn away(how: ProcessEnd) -> PredictError {
    let message = format!("the model's process {how} and is restarting");
    PredictError::new(ErrorCode::Unavailable, message)
        .with_retry_after(Duration::from_secs(1))
        .with_origin(ErrorOrigin::Worker)
}

impl Supervisor {
    /// Keeps a process running until the model is lost.
    async fn keep(
        self,
        mut process: Process,
        mut gone: CancellationToken,
        state: watch::Sender<State>,
    ) {
        let mut ends = RecentEnds::new(self.restarts);
        loop {
            let how = tokio::select! {
                ended = process.wait() => ended.map_or(ProcessEnd::Stuck, ProcessEnd::from),
                () = gone.cancelled() => ProcessEnd::of(&mut process).await,
            };
            self.note(how);
            state.send_replace(State::Down(how));
            // A caller's request can make a process take too much memory. It must not be able to
            // fail the replica, so these ends do not count.
            let mut uncounted = (how == ProcessEnd::Memory).then_some(self.restarts.first_wait);
            (process, gone) = loop {
                let Some(wait) = uncounted.take().or_else(|| ends.next(Instant::now())) else {
                    state.send_replace(State::Lost(self.lost(how)));
                    return;
                };
                tokio::time::sleep(wait).await;
                match self.launcher.launch().await {
                    Ok(launched) => {
                        tracing::info!(model = %self.assignment.model, "model process restarted");
                        state.send_replace(State::Up(launched.client));
                        break (launched.process, launched.gone);
                    }
                    Err(error) => {
                        let (model, error) = (&self.assignment.model, error.chain());
                        tracing::warn!(%model, error, "model process restart failed");
                    }
                }
            };
        }
    }

    fn note(&self, how: ProcessEnd) {
        let model = &self.assignment.model;
        self.metrics.model_process_ended(model);
        tracing::error!(
            %model, version = %self.assignment.spec.version, %how,
            "model process ended"
        );
    }

    fn lost(&self, how: ProcessEnd) -> PredictError {
        let message = format!(
            "the model's process {how}; it ended {} times within {} minutes and is not restarted \
             for now; check the model's files and its requests",
            self.restarts.most,
            self.restarts.window.as_secs().div_ceil(60)
        );
        PredictError::new(ErrorCode::Unavailable, message).with_origin(ErrorOrigin::Model)
    }
}

/// The recent ends of a model's processes.
struct RecentEnds {
    rule: Restarts,
    last: VecDeque<Instant>,
}

impl RecentEnds {
    fn new(rule: Restarts) -> Self {
        Self {
            rule,
            last: VecDeque::new(),
        }
    }

    /// The wait after an end, or a failed start, at `now`; `None` when the model is lost.
    fn next(&mut self, now: Instant) -> Option<Duration> {
        let window = self.rule.window;
        self.last.retain(|end| now.duration_since(*end) < window);
        self.last.push_back(now);
        if self.rule.most <= self.last.len() {
            return None;
        }
        let doublings = u32::try_from(self.last.len() - 1).unwrap_or(u32::MAX);
        let wait = 2_u32
            .checked_pow(doublings)
            .and_then(|by| self.rule.first_wait.checked_mul(by));
        let wait = wait.map_or(self.rule.longest_wait, |wait| {
            wait.min(self.rule.longest_wait)
        });
        // Jitter: several models that failed together do not restart together.
        Some(wait.mul_f64(0.75 + fastrand::f64() / 2.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_old_ends_are_forgotten() {
        let rule = Restarts {
            most: 4,
            ..Restarts::default()
        };
        let (mut ends, start) = (RecentEnds::new(rule), Instant::now());
        let waits: Vec<_> = (0..4).map(|_| ends.next(start)).collect();
        let millis = |index: usize| waits[index].unwrap().as_millis();
        assert!((75..=125).contains(&millis(0)), "{waits:?}");
        assert!((300..=500).contains(&millis(2)), "{waits:?}");
        assert_eq!(waits[3], None);
        let later = start + rule.window;
        assert!(ends.next(later).is_some());
    }
}
