//! The attempts of one request: choice of the next replica, retries, and hedging.

mod continuation;
mod liveness;

use std::pin::pin;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use async_stream::stream;
use futures::future::{Either, select};
use futures::{Stream, StreamExt};
use volley_types::chunk::ChunkStream;
use volley_types::signature::ModelMetadata;
use volley_types::{
    Deadline, ErrorCode, ErrorOrigin, ErrorReason, ModelName, ModelRef, ModelVersion, PredictError,
    PredictRequest, Signature, Task, WorkerId,
};

use self::liveness::LivenessWatch;
use crate::live::{Candidate, ReplicaCall};
use crate::route::{self, RoutingHints, affinity};
use crate::{Coordinator, errors};

/// The resolved model of a request.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) model: ModelName,
    pub(crate) version: ModelVersion,
    pub(crate) signature: Signature,
    /// Its replicas cache prompt prefixes.
    pub(crate) keeps_prefixes: bool,
}

impl Target {
    /// Whether it is the resolution of `model`.
    pub(crate) fn serves(&self, model: &ModelRef) -> bool {
        self.model == model.name && model.version.is_none_or(|version| version == self.version)
    }

    /// Whether its replicas sample tokens locally.
    pub(crate) fn draws(&self) -> bool {
        self.signature.task == Task::Generate && self.keeps_prefixes
    }

    /// Whether its replicas keep a state for each sequence of requests.
    fn holds_sequences(&self) -> bool {
        let served = || ModelMetadata::of(&self.signature).config;
        let batches = |config: serde_json::Value| config.get("sequence_batching").is_some();
        self.signature.task == Task::Tensors && served().is_some_and(batches)
    }
}

/// A replica's response, from its first chunk on.
pub(crate) struct ReplicaAnswer {
    /// `None` when the answer has no rows.
    pub(crate) first: Option<RecordBatch>,
    rest: ChunkStream,
    call: ReplicaCall,
    replica: Replica,
}

impl ReplicaAnswer {
    /// The batches after the first chunk. The stream counts as load of the replica until it is
    /// dropped. If the worker stops responding, the stream returns an error.
    pub(crate) fn rest(self) -> impl Stream<Item = Result<RecordBatch, PredictError>> + Send {
        let Self {
            rest,
            mut call,
            replica,
            ..
        } = self;
        stream! {
            let heard = LivenessWatch::now();
            let mut given_up = pin!(replica.given_up(&heard));
            let mut rest = pin!(rest);
            loop {
                let item = tokio::select! {
                    // Polled first, so that received batches are read.
                    biased;
                    item = rest.next() => item,
                    () = &mut given_up => Some(Err(errors::silent_worker())),
                };
                heard.again();
                match item {
                    Some(Ok(batch)) => yield Ok(batch),
                    Some(Err(error)) => {
                        replica.ended(&mut call, &error);
                        yield Err(error);
                        break;
                    }
                    None => break,
                }
            }
        }
    }

    fn worker(&self) -> &WorkerId {
        &self.replica.candidate.worker
    }

    fn schema(&self) -> SchemaRef {
        self.rest.schema()
    }
}

/// Maximum number of activations for one request, if its model is scaled to zero again.
const MAX_WAKES: usize = 3;

/// The replica of a call.
#[derive(Clone)]
struct Replica {
    coordinator: Coordinator,
    model: ModelName,
    version: ModelVersion,
    candidate: Candidate,
}

impl Replica {
    async fn call(self, mut request: PredictRequest) -> Result<ReplicaAnswer, PredictError> {
        let mut call = self.candidate.begin(Instant::now());
        request.trace = request.trace.child();
        let begun = async {
            let mut rest = self.candidate.client.predict(request).await?;
            let first = rest.next().await.transpose()?;
            Ok((first, rest))
        };
        let heard = LivenessWatch::now();
        let begun = tokio::select! {
            biased;
            begun = begun => begun,
            () = self.given_up(&heard) => Err(errors::silent_worker()),
        };
        match begun {
            Ok((first, rest)) => {
                call.succeeded(Instant::now());
                Ok(ReplicaAnswer {
                    first,
                    rest,
                    call,
                    replica: self,
                })
            }
            Err(error) => {
                self.ended(&mut call, &error);
                Err(error)
            }
        }
    }

    fn ended(&self, call: &mut ReplicaCall, error: &PredictError) {
        if was_refused(error) && self.coordinator.may_scale_to_zero(&self.model) {
            // Before its next report, so that later requests do not try this replica.
            let live = &self.coordinator.0.live;
            let mut live = live.write();
            if live.refused(&self.model, &self.candidate, Instant::now()) {
                drop(live);
                self.coordinator.notify_change();
            }
        }
        if !is_fault(error) {
            call.refused();
            return;
        }
        let shared = &self.coordinator.0;
        let all = shared.live.read().candidates(&self.model, self.version);
        if call.failed(Instant::now(), &all) {
            shared.metrics.ejected(&self.model);
            let worker = &self.candidate.worker;
            tracing::warn!(model = %self.model, %worker, code = %error.code, "replica ejected");
        }
    }
}

/// Whether an error means that the worker does not run the replica.
fn was_refused(error: &PredictError) -> bool {
    error.code == ErrorCode::Unavailable && error.origin == ErrorOrigin::Worker
}

/// Whether an error is the replica's fault. Errors of callers or of a remote model's server, and
/// full queues, are not.
fn is_fault(error: &PredictError) -> bool {
    match error.code {
        // If a remote model's server fails, other replicas would fail too.
        ErrorCode::Unavailable => error.origin != ErrorOrigin::Model,
        ErrorCode::DeadlineExceeded | ErrorCode::Internal => true,
        ErrorCode::InvalidInput
        | ErrorCode::Unauthenticated
        | ErrorCode::PermissionDenied
        | ErrorCode::NotFound
        | ErrorCode::NotDeployed
        | ErrorCode::Conflict
        | ErrorCode::TooLarge
        | ErrorCode::Overloaded
        | ErrorCode::Cancelled
        | ErrorCode::UpstreamFailed
        | ErrorCode::UpstreamTimeout
        | ErrorCode::UpstreamIncomplete
        | ErrorCode::Unimplemented => false,
    }
}

/// The attempts of one request: each replica once, within the limits on retries.
pub(crate) struct AttemptPlan {
    coordinator: Coordinator,
    model: ModelName,
    version: ModelVersion,
    hints: RoutingHints,
    /// Delay before a hedged call to a second replica.
    hedge_after: Option<Duration>,
    untried: Vec<Candidate>,
    left: usize,
    /// Whether the model's rows have token ids.
    tells_tokens: bool,
    last_error: Option<PredictError>,
    /// Remaining activations.
    activations: usize,
    /// Deadline of the activation.
    wakes_until: Option<Deadline>,
}

impl Coordinator {
    pub(crate) fn attempts(&self, target: &Target, request: &PredictRequest) -> AttemptPlan {
        self.0.retry_budget.earn();
        self.0.loss_budget.earn();
        let session = request.session.as_ref();
        // A second call of a stream would do its whole work twice.
        let unary = !matches!(target.signature.task, Task::Generate | Task::Events);
        // Another replica does not have the sequence's state, and a second call would be a second
        // step.
        let held = session.is_some() && target.holds_sequences();
        AttemptPlan {
            untried: self.0.live.read().candidates(&target.model, target.version),
            hints: RoutingHints {
                session: session.map(|name| affinity::hash(name.as_bytes())),
                held,
                prefix: target
                    .keeps_prefixes
                    .then(|| affinity::prefix(&request.input))
                    .flatten(),
            },
            hedge_after: self.0.config.routing.hedge_after.filter(|_| unary && !held),
            left: if held { 1 } else { self.0.config.max_attempts },
            tells_tokens: target.draws(),
            last_error: None,
            activations: MAX_WAKES,
            wakes_until: None,
            model: target.model.clone(),
            version: target.version,
            coordinator: self.clone(),
        }
    }
}

impl AttemptPlan {
    /// Returns the next replica, or the error of the last attempt. If the model was scaled to zero
    /// meanwhile, it waits for the activation.
    pub(crate) async fn route(&mut self) -> Result<Candidate, PredictError> {
        loop {
            if let Some(chosen) = self.choose() {
                self.left = self.left.saturating_sub(1);
                return Ok(chosen);
            }
            let error = self.last_error.take();
            let gone = error.as_ref().is_none_or(was_refused);
            if !gone || !self.may_wake() {
                return Err(error.unwrap_or_else(|| {
                    let live = self.coordinator.0.live.read();
                    let failure = live.failure(&self.model, self.version);
                    errors::no_replica(&self.model, failure.as_deref())
                }));
            }
            self.activate().await?;
        }
    }

    /// Whether the request may wait for an activation of its model.
    fn may_wake(&self) -> bool {
        0 < self.activations && self.coordinator.may_scale_to_zero(&self.model)
    }

    /// Waits for the activation of the model, and restarts with its replicas.
    async fn activate(&mut self) -> Result<(), PredictError> {
        self.activations -= 1;
        let timeout = self.coordinator.0.config.wake_timeout;
        let until = *self
            .wakes_until
            .get_or_insert_with(|| Deadline::after(Instant::now(), timeout));
        let activated = self.coordinator.activate(&self.model, None);
        let activated = tokio::time::timeout_at(until.instant().into(), activated).await;
        activated.unwrap_or_else(|_| Err(errors::not_woken(&self.model)))?;
        self.left = self.coordinator.0.config.max_attempts;
        self.renew(&[]);
        Ok(())
    }

    /// Restarts with all current replicas, except those of `lost` workers.
    fn renew(&mut self, lost: &[WorkerId]) {
        let live = self.coordinator.0.live.read();
        self.untried = live.candidates(&self.model, self.version);
        self.untried
            .retain(|candidate| !lost.contains(&candidate.worker));
    }

    fn choose(&mut self) -> Option<Candidate> {
        let shared = &self.coordinator.0;
        let (now, slow_start) = (Instant::now(), shared.config.routing.slow_start);
        let views: Vec<_> = self
            .untried
            .iter()
            .map(|candidate| candidate.view(now, slow_start))
            .collect();
        let (chosen, reason) = route::decide(&views, &self.hints, &mut fastrand::Rng::new())?;
        shared.metrics.routed(reason.as_str());
        Some(self.untried.swap_remove(chosen))
    }

    /// Calls a replica and waits for the first chunk. With hedging, a repeatable request is also
    /// sent to a second replica if the first does not respond in time, within the retry budget. The
    /// first response wins, and the other call is dropped.
    pub(crate) async fn call(
        &mut self,
        replica: Candidate,
        request: PredictRequest,
    ) -> Result<ReplicaAnswer, PredictError> {
        let hedge = self.hedge_after.zip(request.try_clone());
        let mut first = pin!(self.replica(replica).call(request));
        let Some((after, copy)) = hedge else {
            return first.await;
        };
        if let Ok(answer) = tokio::time::timeout(after, &mut first).await {
            return answer;
        }
        if self.untried.is_empty() || !self.coordinator.0.retry_budget.spend() {
            return first.await;
        }
        let Some(second) = self.choose() else {
            return first.await;
        };
        self.coordinator.0.metrics.hedged(&self.model);
        let second = pin!(self.replica(second).call(copy));
        match select(first, second).await {
            Either::Left((Ok(answer), _)) | Either::Right((Ok(answer), _)) => Ok(answer),
            Either::Left((Err(_), second)) => second.await,
            Either::Right((Err(_), first)) => first.await,
        }
    }

    fn replica(&self, candidate: Candidate) -> Replica {
        Replica {
            coordinator: self.coordinator.clone(),
            model: self.model.clone(),
            version: self.version,
            candidate,
        }
    }

    /// Whether another replica may hold the sequence: the replica of the highest rank may have been
    /// loaded after the sequence started. The failed call ran no step, so trying the next replica
    /// repeats nothing.
    fn is_elsewhere(&self, error: &PredictError) -> bool {
        self.hints.held && error.reason == Some(ErrorReason::SequenceUnknown)
    }

    /// Decides after a failed attempt: `Ok` to try another replica, the error to give up.
    pub(crate) fn retry(
        &mut self,
        error: PredictError,
        repeatable: bool,
    ) -> Result<(), PredictError> {
        let shared = &self.coordinator.0;
        // A rate limit of a model's server applies to all workers.
        let of_model = error.origin == ErrorOrigin::Model && error.code == ErrorCode::Overloaded;
        let elsewhere = error.code.may_retry_elsewhere() && !of_model;
        if repeatable && was_refused(&error) && self.untried.is_empty() && self.may_wake() {
            tracing::info!(
                model = %self.model, error = error.chain(),
                "request waits for the model to be activated"
            );
            self.last_error = Some(error);
            return Ok(());
        }
        if self.is_elsewhere(&error) && repeatable && !self.untried.is_empty() {
            tracing::debug!(model = %self.model, "trying the next replica for the sequence");
            self.last_error = Some(error);
            return Ok(());
        }
        let may_retry = elsewhere && repeatable && 0 < self.left;
        // A lost worker loses all its requests at the same time, so these retries do not indicate
        // overload.
        let lost = error.code == ErrorCode::Unavailable;
        let in_budget = || shared.retry_budget.spend() || (lost && shared.loss_budget.spend());
        if !may_retry || self.untried.is_empty() || !in_budget() {
            return Err(error);
        }
        shared.metrics.retried(&self.model);
        tracing::info!(
            model = %self.model, code = %error.code, error = error.chain(),
            "attempt failed; trying another replica"
        );
        self.last_error = Some(error);
        Ok(())
    }
}
