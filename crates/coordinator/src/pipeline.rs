//! Pipelines: runs the steps of a graph over a request's rows while they arrive.
//!
//! The rows pass through the steps in small waves: one wave is embedded while the previous one is
//! ranked and the one before that is answered. Within a wave, independent steps run concurrently,
//! and the chunks of an answering generation are forwarded immediately. All state is in the
//! response stream: dropping it cancels every step.
//!
//! Reading order: this module (the stream), `run` (the steps of some rows), `call` (models),
//! `local_steps` (the other steps), `typecheck`, `expression`, `table`.

mod call;
mod expression;
mod local_steps;
mod run;
mod table;
mod tensor;
mod text_columns;
mod typecheck;

use std::sync::Arc;
use std::time::Instant;

use arrow_array::RecordBatch;
use async_stream::try_stream;
use futures::stream::select_all;
use futures::{Stream, StreamExt, TryStreamExt};
use volley_telemetry::StreamRecord;
use volley_types::control::ModelStatus;
use volley_types::registry::{
    Branch, ModelState, PipelineSpec, PipelineStep, RegistryState, Shape, StepKind,
};
use volley_types::signature::SERVED_VERSION;
use volley_types::{
    ChunkStream, ErrorCode, GenerationChunk, GenerationChunks, GenerationRow, Input, ModelRef,
    PredictError, PredictRequest, Signature, Task,
};

use self::call::{CallHead, PipelineRequest};
use self::run::{Output, PipelineRun};
use self::typecheck::TypedPipeline;
use crate::Coordinator;
use crate::guard::GuardedStream;
use crate::stream_limiter::StreamPermit;

/// Rows of one wave.
const WAVE_ROWS: usize = 64;
/// Maximum number of concurrent waves of one request.
const WAVES: usize = 4;

/// Adds the name of the step to an error.
fn of_step(step: &PipelineStep, mut error: PredictError) -> PredictError {
    error.message = format!("step '{}': {}", step.name, error.message);
    error
}

impl Coordinator {
    /// The signature of a pipeline, if its models are available.
    pub(crate) fn pipeline_signature(
        &self,
        registry: &RegistryState,
        spec: &PipelineSpec,
    ) -> Result<Signature, PredictError> {
        spec.check_loaded()?;
        let shape = spec.shape()?;
        let typed = self.typed(registry, spec, &shape)?;
        Ok(typed.signature)
    }

    fn typed(
        &self,
        registry: &RegistryState,
        spec: &PipelineSpec,
        shape: &Shape,
    ) -> Result<TypedPipeline, PredictError> {
        TypedPipeline::new(spec, shape, |model| self.name_signature(registry, model))
    }

    /// Rejects a pipeline that can never run: incompatible steps, malformed templates, and columns
    /// that do not match its available models.
    pub(crate) fn check_pipeline(&self, spec: &PipelineSpec) -> Result<(), PredictError> {
        let shape = spec.check()?;
        for step in &spec.steps {
            let read = match &step.kind {
                StepKind::Template { template, .. } => expression::check_template(template),
                StepKind::Compute { expression, .. }
                | StepKind::Branch(Branch::When { expression, .. }) => {
                    expression::check_expression(expression)
                }
                _ => Ok(()),
            };
            read.map_err(|error| of_step(step, error))?;
        }
        let registry = self.0.cluster.registry().borrow().clone();
        match self.typed(&registry, spec, &shape) {
            Ok(_) => Ok(()),
            // A model that does not exist yet is not an error.
            Err(error) => match error.code {
                ErrorCode::InvalidInput => Err(error),
                _ => Ok(()),
            },
        }
    }

    /// State of a pipeline, derived from its models.
    pub(crate) fn pipeline_status(
        &self,
        registry: &RegistryState,
        spec: &PipelineSpec,
    ) -> ModelStatus {
        let state = match self.pipeline_signature(registry, spec) {
            Ok(_) => ModelState::Deployed,
            Err(_) => ModelState::Undeployed,
        };
        ModelStatus {
            state,
            desired_replicas: 0,
            version: None,
            replicas: Vec::new(),
            serving: Vec::new(),
            unplaced: None,
        }
    }

    /// Answers a request to a pipeline.
    pub(crate) fn answer_pipeline(
        &self,
        registry: &RegistryState,
        mut request: PredictRequest,
        spec: &Arc<PipelineSpec>,
        permit: Option<StreamPermit>,
    ) -> Result<ChunkStream, PredictError> {
        spec.check_loaded()?;
        if spec.ensemble.is_some() {
            // It has one.
            request.parameters.remove(SERVED_VERSION);
        }
        let shape = spec.shape()?;
        let typed = self.typed(registry, spec, &shape)?;
        self.check_fits(registry, &request.model, &typed.signature)?;
        request.input = typed.signature.conform(request.input)?;
        let head = CallHead::of(&request);
        let (deadline, task, schema) = (
            request.unkept_deadline(),
            spec.task,
            typed.signature.output.clone(),
        );
        let answered_by = ModelRef::deployed(spec.name.clone());
        let record = StreamRecord::begin(&self.0.metrics, &spec.name, Instant::now())
            .with_deadline(request.deadline);
        let request_id = request.request_id.clone();
        let run = Arc::new(PipelineRequest {
            coordinator: self.clone(),
            spec: spec.clone(),
            shape,
            typed,
            parameters: request.parameters,
            head,
        });
        let answers = answers(run, request.input.into_inner());
        let batches = GuardedStream::new(Box::pin(answers), record, request_id)
            .with_deadline(deadline)
            .with_task(task);
        let stream = ChunkStream::new(schema, batches).with_answered_by(answered_by);
        Ok(stream.holding(permit))
    }
}

/// The rows of a request, a few at a time.
fn slices(input: Input) -> impl Stream<Item = Result<RecordBatch, PredictError>> + Send {
    input.into_stream().flat_map(|batch| {
        let slices: Vec<_> = match batch {
            Ok(batch) => {
                let starts = (0..batch.num_rows()).step_by(WAVE_ROWS);
                let slice = |from| {
                    let rows = WAVE_ROWS.min(batch.num_rows() - from);
                    Ok(batch.slice(from, rows))
                };
                starts.map(slice).collect()
            }
            Err(error) => vec![Err(error)],
        };
        futures::stream::iter(slices)
    })
}

/// The answers to a request's rows, in their order.
fn answers(
    run: Arc<PipelineRequest>,
    input: Input,
) -> impl Stream<Item = Result<RecordBatch, PredictError>> + Send {
    let generates = run.spec.task == Task::Generate;
    let mut first_row = 0_u32;
    let waves = slices(input).map(move |batch| {
        let at = first_row;
        let rows = batch.as_ref().map_or(0, RecordBatch::num_rows);
        // A request cannot have more rows than `u32::MAX`.
        first_row = first_row.saturating_add(u32::try_from(rows).unwrap_or(u32::MAX));
        let run = run.clone();
        async move {
            let wave = Arc::new(PipelineRun::new(run, &batch?));
            Ok::<_, PredictError>((at, wave.answer().await?))
        }
    });
    let mut waves = waves.buffered(WAVES).boxed();
    try_stream! {
        let mut numbered = ChunkNumbering::default();
        while let Some((at, output)) = waves.try_next().await? {
            match output {
                Output::Rows(batch) if generates => {
                    let chunks = GenerationRow::rows(&batch)?.map(|row| call::chunk(&row));
                    let batch = numbered.chunks(chunks.collect(), at);
                    if batch.num_rows() != 0 {
                        yield batch;
                    }
                }
                Output::Rows(batch) => yield batch,
                Output::Chunks(wave, streams) => {
                    let streams = streams.into_iter().map(|(place, stream, roots)| {
                        let wave = wave.clone();
                        stream.map(move |batch| {
                            let step = &wave.run.spec.steps[place];
                            let batch = batch.map_err(|error| of_step(step, error))?;
                            mapped(&wave, &batch, &roots)
                        })
                    });
                    let mut all = select_all(streams.map(StreamExt::boxed));
                    while let Some(chunks) = all.try_next().await? {
                        let batch = numbered.chunks(chunks, at);
                        if batch.num_rows() != 0 {
                            yield batch;
                        }
                    }
                }
            }
        }
        if generates {
            yield numbered.end()?;
        }
    }
}

/// Maps the chunks of a step to the wave's rows, and adds the usage of the previous steps.
fn mapped(
    wave: &PipelineRun,
    batch: &RecordBatch,
    roots: &[u32],
) -> Result<Vec<GenerationChunk>, PredictError> {
    let rows = GenerationRow::rows(batch)?;
    let chunks = rows.map(|row| {
        let mut chunk = call::chunk(&row);
        let root = roots.get(chunk.item as usize).copied();
        chunk.item = root.ok_or_else(|| {
            let cause = format!("item {} of {}", chunk.item, roots.len());
            PredictError::internal(
                "the model returned an answer without a matching request row",
                cause,
            )
        })?;
        if let (Some(usage), 0) = (&mut chunk.usage, chunk.choice) {
            *usage += wave.usage(chunk.item);
        }
        Ok(chunk)
    });
    chunks.collect()
}

/// Merges the chunks of several generations to one stream with consecutive numbers and one terminal
/// row. A row that may be the terminal one is held back until this is known.
#[derive(Default)]
struct ChunkNumbering {
    sequence: u32,
    held: Option<GenerationChunk>,
}

impl ChunkNumbering {
    fn chunks(&mut self, chunks: Vec<GenerationChunk>, first_row: u32) -> RecordBatch {
        let mut rows = GenerationChunks::default();
        for mut chunk in chunks {
            chunk.item = chunk.item.saturating_add(first_row);
            if let Some(held) = self.held.take() {
                self.push(held, &mut rows);
            }
            if std::mem::take(&mut chunk.last) {
                self.held = Some(chunk);
            } else {
                self.push(chunk, &mut rows);
            }
        }
        rows.finish()
    }

    fn push(&mut self, mut chunk: GenerationChunk, rows: &mut GenerationChunks) {
        chunk.sequence = self.sequence;
        self.sequence += 1;
        rows.push(&chunk);
    }

    fn end(&mut self) -> Result<RecordBatch, PredictError> {
        let mut rows = GenerationChunks::default();
        let mut last = self
            .held
            .take()
            .ok_or_else(|| PredictError::invalid("the request has no rows"))?;
        last.last = true;
        self.push(last, &mut rows);
        Ok(rows.finish())
    }
}
