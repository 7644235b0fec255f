//! One prediction through the cluster: admit → resolve → route → call → first chunk → stream.
//!
//! [`Predict::predict`] on [`Coordinator`] returns once the first two steps have passed; the
//! other four run inside the stream that it returns. Until the first chunk has come, nothing
//! was promised to the caller, and another replica may be tried; after it, errors end the
//! stream. All that the request holds (its permit, its place in the load of a replica, the
//! exchange with the worker) lives in the stream and goes when it is dropped.

use std::time::Instant;

use arrow_array::RecordBatch;
use async_stream::try_stream;
use async_trait::async_trait;
use futures::StreamExt;
use tokio::sync::OwnedSemaphorePermit;
use volley_telemetry::{StreamRecord, recorded};
use volley_types::chunk::ChunkStream;
use volley_types::{
    ErrorCode, ErrorOrigin, ModelName, ModelRef, ModelVersion, Predict, PredictError,
    PredictRequest, Signature,
};

use crate::guard;
use crate::live::{Candidate, InFlight};
use crate::{Coordinator, refusal, route};

#[async_trait]
impl Predict for Coordinator {
    async fn predict(&self, mut request: PredictRequest) -> Result<ChunkStream, PredictError> {
        let (permit, target) = self.accept(&request)?;
        request.model.version = Some(target.version);
        let record = StreamRecord::begin(&self.0.metrics, &request.model.name, Instant::now());
        let (deadline, schema, task) = (
            request.deadline,
            target.signature.output.clone(),
            target.signature.task,
        );

        let coordinator = self.clone();
        let batches = try_stream! {
            let mut request = Some(request);
            let mut tries = coordinator.tries(&target);
            let mut answer = loop {
                // 3. Route: the next replica that was not tried yet.
                let replica = tries.route()?;
                // 4. Call it, keeping a copy of the request where there can be one.
                let attempt = request.take().ok_or_else(refusal::spent)?;
                request = attempt.try_clone();
                match call(replica, attempt).await {
                    // 5. The first chunk, or the end of an empty answer: this replica it is.
                    Ok(answer) => break answer,
                    // Nothing was sent on yet: another replica may be tried.
                    Err(error) => tries.retry(error, request.is_some())?,
                }
            };
            // 6. Stream.
            if let Some(first) = answer.first.take() {
                yield first;
                while let Some(batch) = answer.rest.next().await {
                    yield batch?;
                }
            }
        };
        let batches = guard::deadline(deadline, batches);
        let batches = guard::terminated(task, batches);
        let batches = recorded(record, batches);
        Ok(ChunkStream::new(schema, batches).holding(permit))
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        self.resolve(model).map(|target| target.signature)
    }

    async fn models(&self) -> Vec<ModelName> {
        let registry = self.0.cluster.registry().borrow().clone();
        let deployed = registry
            .models
            .values()
            .filter(|model| model.deployment.is_some());
        deployed.map(|model| model.name.clone()).collect()
    }
}

/// What a request's model reference stands for now.
struct Target {
    model: ModelName,
    version: ModelVersion,
    signature: Signature,
}

/// A replica's answer from its first chunk on.
struct Answer {
    /// `None` when the answer has no rows.
    first: Option<RecordBatch>,
    rest: ChunkStream,
    _in_flight: InFlight,
}

impl Coordinator {
    fn accept(
        &self,
        request: &PredictRequest,
    ) -> Result<(OwnedSemaphorePermit, Target), PredictError> {
        let accepted = (|| {
            // 1. Admit: a free place, or refuse at once.
            let permit = self.admit()?;
            // 2. Resolve: which version, and whether it takes such columns.
            let target = self.resolve(&request.model)?;
            target.signature.check_input(&request.input.schema())?;
            Ok((permit, target))
        })();
        accepted.inspect_err(|error: &PredictError| {
            let registered = self
                .0
                .cluster
                .registry()
                .borrow()
                .models
                .contains_key(&request.model.name);
            let label = registered.then_some(&request.model.name);
            self.0.metrics.refused(label, error.code);
        })
    }

    fn admit(&self) -> Result<OwnedSemaphorePermit, PredictError> {
        if !self.accepts() {
            return Err(refusal::draining());
        }
        self.0
            .permits
            .clone()
            .try_acquire_owned()
            .map_err(|_| refusal::full(self.0.config.max_streams))
    }

    fn resolve(&self, model: &ModelRef) -> Result<Target, PredictError> {
        let registry = self.0.cluster.registry().borrow().clone();
        let entry = registry
            .models
            .get(&model.name)
            .ok_or_else(|| refusal::unknown(&model.name))?;
        let Some(deployment) = &entry.deployment else {
            return Err(refusal::not_deployed(&model.name));
        };
        let deployed = deployment.version;
        if model.version.is_some_and(|asked| asked != deployed) {
            return Err(refusal::other_version(model, deployed));
        }
        let live = self.0.live.read();
        // Until the deployed version is loaded, the one before it serves those who ask for none.
        let version = match model.version {
            Some(asked) => asked,
            None => live.serving(&model.name, deployed).unwrap_or(deployed),
        };
        let signature = live.signature(&model.name, version);
        let signature = signature.ok_or_else(|| refusal::no_replica(&model.name))?;
        Ok(Target {
            model: model.name.clone(),
            version,
            signature,
        })
    }

    fn tries(&self, target: &Target) -> Tries {
        self.0.retry_budget.earn();
        Tries {
            untried: self.0.live.read().candidates(&target.model, target.version),
            left: self.0.config.max_tries,
            last_error: None,
            model: target.model.clone(),
            coordinator: self.clone(),
        }
    }
}

async fn call(replica: Candidate, mut request: PredictRequest) -> Result<Answer, PredictError> {
    let in_flight = replica.begin();
    request.trace = request.trace.child();
    let mut rest = replica.client.predict(request).await?;
    let first = rest.next().await.transpose()?;
    Ok(Answer {
        first,
        rest,
        _in_flight: in_flight,
    })
}

/// The tries of one request: each replica once, within the limits on retries.
struct Tries {
    coordinator: Coordinator,
    model: ModelName,
    untried: Vec<Candidate>,
    left: usize,
    last_error: Option<PredictError>,
}

impl Tries {
    /// The next replica, or why there is none: the last one's error where one was tried.
    fn route(&mut self) -> Result<Candidate, PredictError> {
        self.left = self.left.saturating_sub(1);
        route::choose(&mut self.untried, &mut fastrand::Rng::new()).ok_or_else(|| {
            self.last_error
                .take()
                .unwrap_or_else(|| refusal::no_replica(&self.model))
        })
    }

    /// Decides after a failed try: `Ok` to go on to another replica, the error to give up.
    fn retry(&mut self, error: PredictError, repeatable: bool) -> Result<(), PredictError> {
        let shared = &self.coordinator.0;
        // A model's server that limits requests limits them whichever worker they come from.
        let of_model = error.origin == ErrorOrigin::Model && error.code == ErrorCode::Overloaded;
        let elsewhere = error.code.may_retry_elsewhere() && !of_model;
        let may_retry = elsewhere && repeatable && 0 < self.left;
        if !may_retry || self.untried.is_empty() || !shared.retry_budget.spend() {
            return Err(error);
        }
        shared.metrics.retried(&self.model);
        tracing::info!(model = %self.model, code = %error.code, error = error.chain(), "trying another replica");
        self.last_error = Some(error);
        Ok(())
    }
}
