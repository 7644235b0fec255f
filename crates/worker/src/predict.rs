//! One request on a worker: find the replica, wait in its queue, run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use async_stream::try_stream;
use async_trait::async_trait;
use futures::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use volley_telemetry::StreamRecord;
use volley_types::chunk::BatchResult;
use volley_types::{
    ChunkStream, Deadline, ErrorCode, ErrorOrigin, ModelName, ModelRef, Predict, PredictError,
    PredictRequest, RequestId, Resolved, Signature,
};

use crate::Worker;
use crate::admission::AdmissionRequest;
use crate::replica::{LoadedReplica, Replica};

/// Retry delay after a queue timeout.
const RETRY_AFTER: Duration = Duration::from_secs(5);

#[async_trait]
impl Predict for Worker {
    /// Rejects immediately if the queue is full. The waits for the permit and for the caller's rows
    /// are inside the stream, which owns the permit. The deadline covers the wait and the complete
    /// stream, unless the caller enforces it; the wait has a separate limit. The caller must drop a
    /// stalled stream, as the Flight server does.
    async fn predict(&self, mut request: PredictRequest) -> Result<ChunkStream, PredictError> {
        let model = request.model.name.clone();
        let found = self.check_open().and_then(|()| self.callable(&mut request));
        // An unknown name must not become a label of metrics.
        let loaded = found.inspect_err(|error| self.0.metrics.refused(None, error.code))?;
        let entered = loaded.signature.check(&mut request.input);
        let visitor = AdmissionRequest {
            tenant: &request.tenant,
            priority: request.priority,
            deadline: request.deadline,
        };
        let entered = entered.and_then(|()| loaded.admission.acquire(visitor));
        let ticket = entered.inspect_err(|error| {
            self.0.metrics.refused(Some(&model), error.code);
        })?;
        let record = StreamRecord::begin(&self.0.metrics, &model, Instant::now())
            .with_deadline(request.deadline);
        let metrics = self.0.metrics.clone();
        let schema = loaded.signature.answer(&request.parameters);
        let waiting_since = Instant::now();
        let request_id = request.request_id.clone();
        let limits = StreamLimits {
            deadline: request.unkept_deadline(),
            abort: loaded.abort.clone(),
        };
        let queue_timeout = self.0.config.queue_timeout;
        let worker = self.clone();
        let run = try_stream! {
            let place = async {
                let permit = ticket.await?;
                // The permit is released last, so that the next request finds the backend loaded.
                Ok::<_, PredictError>((worker.acquire(&loaded.slot).await?, permit))
            };
            let place = limits.within(tokio::time::timeout(queue_timeout, place)).await?;
            let (lease, permit) = place.map_err(|_| waited_too_long())??;
            metrics.queue_wait(&model, waiting_since.elapsed());
            loaded.waits.add(waiting_since.elapsed(), Instant::now());
            let begun = limits.within(lease.backend.predict(request)).await?;
            let mut chunks = begun?.holding((lease, permit));
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
            // The permit is free before the caller reads the end of the stream.
            drop(chunks);
            if let Some(error) = failure {
                Err(error)?;
            }
        };
        let batches = ReplicaStream {
            batches: Some(Box::pin(run)),
            record,
            request: request_id,
        };
        Ok(ChunkStream::new(schema, batches))
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        self.find(model).map(|(_, loaded)| loaded.signature)
    }

    async fn resolve(&self, model: &ModelRef) -> Result<Resolved, PredictError> {
        let (replica, loaded) = self.find(model)?;
        let resolved = Resolved::new(model.clone(), loaded.signature);
        Ok(resolved.with_target(replica))
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

/// Response stream of one replica, with metrics. A panic of the backend ends it with an error.
struct ReplicaStream<S> {
    /// `None` once the stream has ended.
    batches: Option<Pin<Box<S>>>,
    record: StreamRecord,
    request: RequestId,
}

impl<S: Stream<Item = BatchResult>> Stream for ReplicaStream<S> {
    type Item = BatchResult;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<BatchResult>> {
        let this = &mut *self;
        let Some(batches) = &mut this.batches else {
            return Poll::Ready(None);
        };
        let polled = catch_unwind(AssertUnwindSafe(|| batches.as_mut().poll_next(cx)));
        let item = ready!(polled.unwrap_or_else(|_| Poll::Ready(Some(Err(panicked())))));
        if !matches!(item, Some(Ok(_))) {
            this.batches = None;
        }
        Poll::Ready(this.record.observe(item, &this.request, Instant::now()))
    }
}

/// Conditions that end a stream from outside.
struct StreamLimits {
    deadline: Option<Deadline>,
    abort: CancellationToken,
}

impl StreamLimits {
    /// Awaits `work` unless a limit is reached first.
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

    /// Checks the limits without waiting: work that is always ready never polls [`Self::reached`].
    ///
    /// # Errors
    /// The error of the reached limit, if any.
    fn check(&self) -> Result<(), PredictError> {
        if self.abort.is_cancelled() {
            return Err(unloaded());
        }
        match self.deadline {
            Some(deadline) if deadline.remaining(Instant::now()).is_zero() => Err(too_late()),
            _ => Ok(()),
        }
    }

    /// Completes with the error of the first reached limit.
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
    /// The resolved replica of the request if it accepts requests; otherwise another one.
    fn callable(&self, request: &mut PredictRequest) -> Result<LoadedReplica, PredictError> {
        let resolved = request.resolved.take();
        let replica = resolved.as_ref().and_then(Resolved::target::<Arc<Replica>>);
        let loaded = replica.and_then(|replica| replica.ready().or_else(|| replica.draining()));
        match loaded {
            Some(loaded) => Ok(loaded),
            None => self.find(&request.model).map(|(_, loaded)| loaded),
        }
    }

    /// Rejects requests after the grace period of a drain, when every coordinator has noticed it.
    fn check_open(&self) -> Result<(), PredictError> {
        if self.0.closed.load(Ordering::Acquire) {
            let message = "this worker is shutting down";
            return Err(
                PredictError::new(ErrorCode::Unavailable, message).with_origin(ErrorOrigin::Worker)
            );
        }
        Ok(())
    }

    /// The replica of a model: of the requested version, or of the newest. Ready replicas precede
    /// draining ones.
    fn find(&self, model: &ModelRef) -> Result<(Arc<Replica>, LoadedReplica), PredictError> {
        let replicas = self.0.replicas.read();
        let fits = replicas.iter().filter(|replica| {
            let version = replica.assignment.spec.version;
            replica.assignment.model == model.name
                && model.version.is_none_or(|asked| asked == version)
        });
        let callable = fits.filter_map(|replica| {
            let version = replica.assignment.spec.version;
            let ready = replica.ready().map(|loaded| (true, loaded));
            let callable = ready.or_else(|| Some((false, replica.draining()?)));
            callable.map(|(ready, loaded)| ((ready, version), (replica.clone(), loaded)))
        });
        let newest = callable.max_by_key(|(order, _)| *order);
        newest.map(|(_, loaded)| loaded).ok_or_else(|| {
            // The caller's state of this worker is outdated; another replica can serve.
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
