//! Tensor models: rows in, rows out, in order.
//!
//! One thread owns the session and runs one batch at a time; `ONNX Runtime` spreads a run over
//! its own threads. A run whose caller has gone is stopped.

mod decode;
mod encode;
mod run;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use async_stream::try_stream;
use async_trait::async_trait;
use futures::TryStreamExt;
use ort::session::{NoSelectedOutputs, RunOptions};
use tokio::sync::oneshot;
use volley_backend::Backend;
use volley_types::{
    ChunkStream, ErrorCode, ErrorOrigin, ModelName, ModelRef, Predict, PredictError,
    PredictRequest, Signature, Task,
};

use crate::columns::{Port, is_batched};
use crate::{OnnxConfig, Runtime, session};

pub(crate) type Options = RunOptions<NoSelectedOutputs>;

/// A loaded tensor model.
struct TensorModel {
    model: ModelName,
    signature: Signature,
    config: OnnxConfig,
    jobs: mpsc::SyncSender<Job>,
}

struct Job {
    rows: RecordBatch,
    options: Arc<Options>,
    answer: oneshot::Sender<Result<RecordBatch, PredictError>>,
}

/// Stops a run when its caller goes away.
struct Terminator(Arc<Options>);

impl Drop for Terminator {
    fn drop(&mut self) {
        if let Err(error) = self.0.terminate() {
            tracing::warn!(error = %error, "a run could not be stopped");
        }
    }
}

/// What a session takes and gives.
pub(crate) struct Ports {
    pub(crate) inputs: Vec<Port>,
    pub(crate) outputs: Vec<Port>,
    pub(crate) batched: bool,
    pub(crate) output_schema: SchemaRef,
}

/// Loads `model.onnx`. Blocks.
pub(crate) fn load(
    runtime: &Runtime,
    directory: &Path,
    model: ModelName,
    config: OnnxConfig,
) -> Result<Arc<dyn Backend>, PredictError> {
    let session = session::build(runtime, &directory.join("model.onnx"), &config)?;
    let ports = ports(&session)?;
    let input = Schema::new(ports.inputs.iter().map(Port::field).collect::<Vec<_>>());
    let signature = Signature {
        task: Task::Tensors,
        input: Arc::new(input),
        output: ports.output_schema.clone(),
    };
    let (jobs, queue) = mpsc::sync_channel::<Job>(config.tensor_streams.max(1));
    let mut runner = run::Runner::new(session, ports);
    std::thread::Builder::new()
        .name(format!("onnx-{model}"))
        .spawn(move || {
            // Ends when the model is dropped, and its sender with it.
            for job in queue {
                if job.answer.is_closed() {
                    continue;
                }
                let answer = runner.run(&job.rows, &job.options);
                // The caller may have gone in the meantime.
                let _ = job.answer.send(answer);
            }
        })
        .map_err(|error| PredictError::internal("the model's thread could not start", error))?;
    Ok(Arc::new(TensorModel {
        model,
        signature,
        config,
        jobs,
    }))
}

fn ports(session: &ort::session::Session) -> Result<Ports, PredictError> {
    let tensors = |outlets: &[ort::value::Outlet]| {
        let read = |outlet: &ort::value::Outlet| match outlet.dtype() {
            ort::value::ValueType::Tensor { ty, shape, .. } => {
                Ok((outlet.name().to_owned(), *ty, shape.to_vec()))
            }
            _ => Err(PredictError::invalid(format!(
                "input or output '{}' is no tensor; only tensors are served",
                outlet.name()
            ))),
        };
        outlets.iter().map(read).collect::<Result<Vec<_>, _>>()
    };
    let (inputs, outputs) = (tensors(session.inputs())?, tensors(session.outputs())?);
    let batched = is_batched(
        inputs
            .iter()
            .chain(&outputs)
            .map(|(_, _, shape)| shape.as_slice()),
    );
    let port = |(name, ty, shape): &(String, _, Vec<i64>)| Port::new(name, *ty, shape, batched);
    let outputs: Vec<_> = outputs.iter().map(port).collect::<Result<_, _>>()?;
    let output_schema = Schema::new(outputs.iter().map(Port::field).collect::<Vec<_>>());
    Ok(Ports {
        inputs: inputs.iter().map(port).collect::<Result<_, _>>()?,
        outputs,
        batched,
        output_schema: Arc::new(output_schema),
    })
}

impl Backend for TensorModel {
    fn capacity(&self) -> usize {
        self.config.tensor_streams.max(1)
    }
}

impl TensorModel {
    async fn run(&self, rows: RecordBatch) -> Result<RecordBatch, PredictError> {
        if self.config.max_rows < rows.num_rows() {
            return Err(PredictError::new(
                ErrorCode::TooLarge,
                format!(
                    "a batch may have at most {} rows; send several",
                    self.config.max_rows
                ),
            ));
        }
        let options = RunOptions::new()
            .map_err(|error| internal("a run could not be set up", error.to_string()))?;
        let options = Arc::new(options);
        let (answer, answered) = oneshot::channel();
        let terminator = Terminator(options.clone());
        self.jobs
            .try_send(Job {
                rows,
                options,
                answer,
            })
            .map_err(|error| match error {
                mpsc::TrySendError::Full(_) => PredictError::new(
                    ErrorCode::Overloaded,
                    "the model's queue is full; try again",
                ),
                mpsc::TrySendError::Disconnected(_) => internal("the model's thread has ended", ""),
            })?;
        let answer = answered.await;
        // It has ended by itself: a late stop would hit nothing.
        drop(terminator);
        answer.unwrap_or_else(|_| Err(internal("the model's thread has ended", "")))
    }
}

#[async_trait]
impl Predict for TensorModel {
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        self.signature.check_input(&request.input.schema())?;
        let model = Self {
            model: self.model.clone(),
            signature: self.signature.clone(),
            config: self.config,
            jobs: self.jobs.clone(),
        };
        let schema = self.signature.output.clone();
        let batches = try_stream! {
            let mut input = request.input.into_stream();
            while let Some(rows) = input.try_next().await? {
                if 0 < rows.num_rows() {
                    yield model.run(rows).await?;
                }
            }
        };
        Ok(ChunkStream::new(schema, batches))
    }

    async fn signature(&self, _: &ModelRef) -> Result<Signature, PredictError> {
        Ok(self.signature.clone())
    }

    async fn models(&self) -> Vec<ModelName> {
        vec![self.model.clone()]
    }
}

pub(crate) fn internal(message: &str, source: impl Into<String>) -> PredictError {
    PredictError::internal(message, source.into()).with_origin(ErrorOrigin::Model)
}
