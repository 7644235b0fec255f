//! The scripted backend: a first-class backend whose behaviour the request chooses, for tests
//! and for drills on a running cluster.
//!
//! Request parameters (all optional): `chunks` (how many, default 4), `text` (of each chunk,
//! default `chunk`; `{n}` stands for its number), `first_delay_ms`, `delay_ms` (between chunks),
//! `fail_after` (chunks, then an error) with `fail_code` (default `internal`), `stall_after`
//! (chunks, then silence), `end_after` (chunks, then an end without a terminal row), `panic_after`.
//!
//! Parameters of a model version are defaults for its requests.
//!
//! Model parameters: `capacity` (default 64), `memory_bytes` (reported memory, default 0),
//! `load_delay_ms`, `load_error` (a message: loading fails with it).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_stream::try_stream;
use async_trait::async_trait;
use volley_types::registry::{Assignment, BackendInfo, BackendName, SourceKind};
use volley_types::{
    ChunkStream, ErrorCode, ErrorOrigin, FinishReason, GenerationChunk, GenerationChunks,
    ModelName, ModelRef, Parameters, Predict, PredictError, PredictRequest, Signature, Usage,
};

use crate::{Backend, BackendLoader, items};

/// Counters of all fake replicas of one loader, for tests.
#[derive(Debug, Default)]
pub struct Tally {
    /// Started predictions.
    pub begun: AtomicU64,
    /// Streams dropped before their end.
    pub cancelled: AtomicU64,
    /// Replicas loaded.
    pub loaded: AtomicU64,
}

/// This backend.
pub static INFO: BackendInfo = BackendInfo {
    name: BackendName::FAKE,
    summary: "answers with scripted behaviour, for tests and drills",
    source: SourceKind::None,
    takes_model_config: false,
};

/// Loads [`FakeBackend`]s.
#[derive(Clone, Debug, Default)]
pub struct FakeLoader {
    tally: Arc<Tally>,
}

impl FakeLoader {
    /// The counters of this loader's replicas.
    #[must_use]
    pub fn tally(&self) -> Arc<Tally> {
        self.tally.clone()
    }
}

#[async_trait]
impl BackendLoader for FakeLoader {
    fn name(&self) -> BackendName {
        BackendName::FAKE
    }

    async fn estimate(&self, assignment: &Assignment) -> Result<u64, PredictError> {
        memory_bytes(&assignment.spec.parameters)
    }

    async fn load(&self, assignment: &Assignment) -> Result<Arc<dyn Backend>, PredictError> {
        let parameters = &assignment.spec.parameters;
        let delay = parameters.unsigned("load_delay_ms")?.unwrap_or(0);
        tokio::time::sleep(Duration::from_millis(delay)).await;
        if let Some(message) = parameters.text("load_error") {
            return Err(PredictError::invalid(message));
        }
        let capacity = parameters.unsigned("capacity")?.unwrap_or(64);
        self.tally.loaded.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(FakeBackend {
            model: assignment.model.clone(),
            defaults: parameters.clone(),
            capacity: usize::try_from(capacity).unwrap_or(usize::MAX).max(1),
            memory_bytes: memory_bytes(parameters)?,
            tally: self.tally.clone(),
        }))
    }
}

/// Loader for workers without [`FakeLoader`]: every load fails.
#[derive(Clone, Copy, Debug, Default)]
pub struct DisallowedFake;

#[async_trait]
impl BackendLoader for DisallowedFake {
    fn name(&self) -> BackendName {
        BackendName::FAKE
    }

    async fn load(&self, _: &Assignment) -> Result<Arc<dyn Backend>, PredictError> {
        Err(PredictError::invalid(
            "the backend 'fake' answers with scripted text, for tests and drills; start the \
             worker with --allow-fake-backend to load it",
        ))
    }
}

fn memory_bytes(parameters: &Parameters) -> Result<u64, PredictError> {
    Ok(parameters.unsigned("memory_bytes")?.unwrap_or(0))
}

/// A loaded fake.
#[derive(Clone, Debug)]
pub struct FakeBackend {
    model: ModelName,
    defaults: Parameters,
    capacity: usize,
    memory_bytes: u64,
    tally: Arc<Tally>,
}

impl Backend for FakeBackend {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

/// Scripted behaviour of one request.
struct Script {
    chunks: u64,
    text: String,
    first_delay: Duration,
    delay: Duration,
    fail_after: Option<(u64, ErrorCode)>,
    stall_after: Option<u64>,
    end_after: Option<u64>,
    panic_after: Option<u64>,
}

impl Script {
    fn read(parameters: &Parameters) -> Result<Self, PredictError> {
        let ms = |name| {
            Ok(Duration::from_millis(
                parameters.unsigned(name)?.unwrap_or(0),
            ))
        };
        let code = parameters
            .text("fail_code")
            .unwrap_or_else(|| "internal".to_owned());
        let code = ErrorCode::from_name(&code)
            .ok_or_else(|| PredictError::invalid("parameter 'fail_code' must be an error code"))?;
        Ok(Self {
            chunks: parameters.unsigned("chunks")?.unwrap_or(4),
            text: parameters
                .text("text")
                .unwrap_or_else(|| "chunk".to_owned()),
            first_delay: ms("first_delay_ms")?,
            delay: ms("delay_ms")?,
            fail_after: parameters
                .unsigned("fail_after")?
                .map(|after| (after, code)),
            stall_after: parameters.unsigned("stall_after")?,
            end_after: parameters.unsigned("end_after")?,
            panic_after: parameters.unsigned("panic_after")?,
        })
    }
}

/// Counts a cancellation when it is dropped before the end.
struct Watch(Arc<Tally>, bool);

impl Watch {
    /// The stream ended by itself.
    fn finish(&mut self) {
        self.1 = true;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.1 {
            self.0.cancelled.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[async_trait]
impl Predict for FakeBackend {
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        let parameters = request.parameters.or_defaults(&self.defaults);
        let script = Script::read(&parameters)?;
        self.tally.begun.fetch_add(1, Ordering::Relaxed);
        let mut watch = Watch(self.tally.clone(), false);
        let batches = try_stream! {
            items::collect(request.input.into_inner()).await?;
            tokio::time::sleep(script.first_delay).await;
            for index in 0..=script.chunks {
                if let Some((after, code)) = script.fail_after && after == index {
                    watch.finish();
                    let error = PredictError::new(code, "the script asked for this error");
                    Err(error.with_origin(ErrorOrigin::Model))?;
                }
                if script.stall_after == Some(index) {
                    std::future::pending::<()>().await;
                }
                if script.end_after == Some(index) {
                    break;
                }
                assert!(script.panic_after != Some(index), "the script asked for this panic");
                if index != 0 {
                    tokio::time::sleep(script.delay).await;
                }
                yield row(&script, index);
            }
            watch.finish();
        };
        Ok(ChunkStream::new(Signature::generation().output, batches))
    }

    async fn signature(&self, _: &ModelRef) -> Result<Signature, PredictError> {
        Ok(Signature::generation())
    }

    async fn models(&self) -> Vec<ModelName> {
        vec![self.model.clone()]
    }
}

fn row(script: &Script, index: u64) -> arrow_array::RecordBatch {
    let last = index == script.chunks;
    let chunks = u32::try_from(script.chunks).unwrap_or(u32::MAX);
    GenerationChunks::single(&GenerationChunk {
        sequence: u32::try_from(index).unwrap_or(u32::MAX),
        text: (!last).then(|| script.text.replace("{n}", &index.to_string())),
        finish_reason: last.then_some(FinishReason::Stop),
        usage: last.then_some(Usage {
            prompt_tokens: 1,
            completion_tokens: chunks,
            ..Usage::default()
        }),
        last,
        ..GenerationChunk::default()
    })
}
