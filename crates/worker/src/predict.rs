//! One request on a worker: find the replica, take a place in its queue, run.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use async_stream::try_stream;
use async_trait::async_trait;
use futures::StreamExt;
use tokio_util::sync::CancellationToken;
use volley_telemetry::{StreamRecord, with_metrics};
use volley_types::{
    ChunkStream, Deadline, ErrorCode, ErrorOrigin, ModelName, ModelRef, Predict, PredictError,
    PredictRequest, Signature,
};

use crate::Worker;
use crate::admission::AdmissionRequest;
use crate::replica::LoadedReplica;

/// When to come back after too long a wait.
const RETRY_AFTER: Duration = Duration::from_secs(5);

#[async_trait]
impl Predict for Worker {
    /// Refuses at once what cannot be queued; the wait for a place, and for the caller's rows,
    /// is inside the stream, which holds the permit. The deadline covers the wait and the whole
    /// stream; the wait has a limit of its own. Both hold whether the stream is read or not, and
    /// one that is not read for too long is ended as well.
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        let model = request.model.name.clone();
        let found = self.check_open().and_then(|()| self.find(&request.model));
        // A name that nobody knows is no label.
        let loaded = found.inspect_err(|error| self.0.metrics.refused(None, error.code))?;
        let schema = request.input.schema();
        let entered = loaded.signature.check_input(&schema);
        let visitor = AdmissionRequest {
            tenant: &request.tenant,
            priority: request.priority,
            deadline: request.deadline,
        };
        let entered = entered.and_then(|()| loaded.admission.acquire(visitor));
        let ticket = entered.inspect_err(|error| {
            self.0.metrics.refused(Some(&model), error.code);
        })?;
        let record = StreamRecord::begin(&self.0.metrics, &model, Instant::now());
        let metrics = self.0.metrics.clone();
        let schema = loaded.signature.answer(&request.parameters);
        let waiting_since = Instant::now();
        let (request_id, until) = (request.request_id.clone(), request.deadline);
        let limits = StreamLimits {
            deadline: request.deadline,
            abort: loaded.abort.clone(),
        };
        let queue_timeout = self.0.config.queue_timeout;
        let worker = self.clone();
        let run = try_stream! {
            let place = async {
                let permit = ticket.await?;
                // The place goes last: whoever is next finds the backend.
                Ok::<_, PredictError>((worker.acquire(&loaded.slot).await?, permit))
            };
            let place = limits.within(tokio::time::timeout(queue_timeout, place)).await?;
            let (guest, permit) = place.map_err(|_| waited_too_long())??;
            metrics.queue_wait(&model, waiting_since.elapsed());
            loaded.waits.add(waiting_since.elapsed(), Instant::now());
            let begun = limits.within(guest.backend.predict(request)).await?;
            let mut chunks = begun?.holding((guest, permit));
            // One wait for the whole stream, not one for each batch.
            let mut reached = std::pin::pin!(limits.reached());
            let failure = loop {
                let next = match limits.check() {
                    Err(error) => break Some(error),
                    Ok(()) => tokio::select! {
                        biased;
                        next = chunks.next() => next,
                        error = &mut reached => break Some(error),
                    },
                };
                match next {
                    Some(Ok(batch)) => yield batch,
                    Some(Err(error)) => break Some(error),
                    None => break None,
                }
            };
            // Whoever reads of the end finds the place free.
            drop(chunks);
            if let Some(error) = failure {
                Err(error)?;
            }
        };
        let fenced = AssertUnwindSafe(run).catch_unwind();
        let batches = fenced.map(|item| item.unwrap_or_else(|_| Err(panicked())));
        let until = until.map(|deadline| deadline.instant().into());
        let watched = (self.0.watchdog).watch(Box::pin(batches), request_id.clone(), until);
        Ok(ChunkStream::new(
            schema,
            with_metrics(record, request_id, watched),
        ))
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        self.find(model).map(|loaded| loaded.signature)
    }

    async fn models(&self) -> Vec<ModelName> {
        let replicas = self.0.replicas.read();
        let ready = replicas.iter().filter(|replica| replica.ready().is_some());
        let mut names: Vec<_> = ready
            .map(|replica| replica.assignment.model.clone())
            .collect();
        names.sort();
        names.dedup();
        names
    }
}

/// What ends a stream from outside.
struct StreamLimits {
    deadline: Option<Deadline>,
    abort: CancellationToken,
}

impl StreamLimits {
    /// Waits for `work`, unless it is ended before.
    ///
    /// # Errors
    /// `DeadlineExceeded`; `Unavailable` when the replica is unloaded.
    async fn within<T>(&self, work: impl Future<Output = T>) -> Result<T, PredictError> {
        self.check()?;
        tokio::select! {
            biased;
            done = work => Ok(done),
            error = self.reached() => Err(error),
        }
    }

    /// Work that never pauses would never let [`Self::reached`] speak.
    ///
    /// # Errors
    /// What ends the stream, where something does by now.
    fn check(&self) -> Result<(), PredictError> {
        if self.abort.is_cancelled() {
            return Err(unloaded());
        }
        match self.deadline {
            Some(deadline) if deadline.remaining(Instant::now()).is_zero() => Err(too_late()),
            _ => Ok(()),
        }
    }

    /// What ends the stream, once something does.
    async fn reached(&self) -> PredictError {
        let late = async {
            match self.deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.instant().into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.abort.cancelled() => unloaded(),
            () = late => too_late(),
        }
    }
}

fn unloaded() -> PredictError {
    let message = "the worker unloaded the model before the answer was complete; try again";
    PredictError::new(ErrorCode::Unavailable, message).with_origin(ErrorOrigin::Worker)
}

pub(crate) fn too_late() -> PredictError {
    let message = "the request did not end in time";
    PredictError::new(ErrorCode::DeadlineExceeded, message).with_origin(ErrorOrigin::Worker)
}

fn waited_too_long() -> PredictError {
    let message = "the request waited too long for the model; try again later, or deploy more \
                   replicas";
    PredictError::new(ErrorCode::Overloaded, message)
        .with_retry_after(RETRY_AFTER)
        .with_origin(ErrorOrigin::Worker)
}

impl Worker {
    /// Refuses requests once a drain's grace is over: every coordinator has heard of it.
    fn check_open(&self) -> Result<(), PredictError> {
        if self.0.closed.load(Ordering::Acquire) {
            let message = "this worker is shutting down";
            return Err(
                PredictError::new(ErrorCode::Unavailable, message).with_origin(ErrorOrigin::Worker)
            );
        }
        Ok(())
    }

    /// The replica for a model: of the version that is asked for, or of the newest. One that is
    /// ready goes before one that drains.
    fn find(&self, model: &ModelRef) -> Result<LoadedReplica, PredictError> {
        let replicas = self.0.replicas.read();
        let fits = replicas.iter().filter(|replica| {
            let version = replica.assignment.spec.version;
            replica.assignment.model == model.name
                && model.version.is_none_or(|asked| asked == version)
        });
        let callable = fits.filter_map(|replica| {
            let version = replica.assignment.spec.version;
            let ready = replica.ready().map(|loaded| (true, loaded));
            let found = ready.or_else(|| Some((false, replica.draining()?)));
            found.map(|(ready, loaded)| ((ready, version), loaded))
        });
        let newest = callable.max_by_key(|(order, _)| *order);
        newest.map(|(_, loaded)| loaded).ok_or_else(|| {
            // The caller's view of this worker is a moment old; another replica can serve.
            let message = format!("this worker holds no ready replica of model '{model}'");
            PredictError::new(ErrorCode::Unavailable, message).with_origin(ErrorOrigin::Worker)
        })
    }
}

fn panicked() -> PredictError {
    PredictError::new(
        ErrorCode::Internal,
        "the model's backend failed unexpectedly",
    )
    .with_origin(ErrorOrigin::Worker)
}
