//! Tensor models: rows in, rows out, in order.
//!
//! One thread owns the session ([`queue`]) and runs one batch at a time ([`run`]). A run whose
//! caller has gone is stopped.

#[cfg(test)]
mod addresses;
mod decode;
mod encode;
mod failure;
mod queue;
mod run;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use async_stream::try_stream;
use async_trait::async_trait;
use futures::TryStreamExt;
use ort::session::{NoSelectedOutputs, RunOptions};
use volley_backend::Backend;
use volley_types::{
    ChunkStream, ErrorCode, ErrorOrigin, ModelName, ModelRef, Predict, PredictError,
    PredictRequest, Signature, Task,
};

use self::queue::Queue;
use crate::columns::{Port, is_batched};
use crate::triton::Declared;
use crate::{OnnxConfig, Runtime, graph, session};

pub(crate) type Options = RunOptions<NoSelectedOutputs>;

/// A loaded tensor model.
struct TensorModel {
    model: ModelName,
    signature: Signature,
    config: OnnxConfig,
    /// The most that run together; more are several runs.
    rows_of_run: Option<NonZeroUsize>,
    memory_bytes: u64,
    queue: Arc<Queue>,
}

/// What a session takes and gives.
pub(crate) struct Ports {
    pub(crate) inputs: Vec<Port>,
    pub(crate) outputs: Vec<Port>,
    pub(crate) batched: bool,
    pub(crate) output_schema: SchemaRef,
}

impl Ports {
    /// Whether the inputs have something that their declaration leaves open: see
    /// [`failure::classify`].
    fn are_varied(&self) -> bool {
        self.inputs.iter().any(Port::is_varied)
    }
}

/// Loads a graph. Blocks.
pub(crate) fn load(
    runtime: &Runtime,
    path: &Path,
    model: ModelName,
    declared: Option<&Declared>,
    config: OnnxConfig,
) -> Result<Arc<dyn Backend>, PredictError> {
    let (session, place) = session::build_placed(runtime, path, &config)?;
    if let Some(declared) = declared {
        declared.check(session.inputs(), session.outputs())?;
    }
    let rows_of_run = declared.map_or(0, |declared| declared.max_batch_size);
    let ports = ports(&session)?;
    let input = Schema::new(ports.inputs.iter().map(Port::field).collect::<Vec<_>>());
    let signature = Signature {
        task: Task::Tensors,
        input: Arc::new(input),
        output: ports.output_schema.clone(),
    };
    let runner = run::Runner::new(session, ports);
    let queue = Queue::start(
        &model,
        runner,
        config.tensor_streams.max(1),
        config.run_timeout,
        place,
    )?;
    Ok(Arc::new(TensorModel {
        model,
        signature,
        config,
        rows_of_run: NonZeroUsize::new(rows_of_run),
        memory_bytes: graph::outline(path)?.bytes,
        queue: Arc::new(queue),
    }))
}

fn ports(session: &ort::session::Session) -> Result<Ports, PredictError> {
    let tensors = |outlets: &[ort::value::Outlet]| {
        let read = |outlet: &ort::value::Outlet| match outlet.dtype() {
            ort::value::ValueType::Tensor {
                ty,
                shape,
                dimension_symbols,
            } => Ok((*ty, (shape.to_vec(), dimension_symbols.to_vec()))),
            other => Err(PredictError::invalid(format!(
                "input or output '{}' is {}; only tensors are served",
                outlet.name(),
                kind(other)
            ))),
        };
        let read: Result<Vec<_>, _> = outlets.iter().map(read).collect();
        Ok::<(Vec<_>, Vec<_>), PredictError>(read?.into_iter().unzip())
    };
    let (input_types, inputs) = tensors(session.inputs())?;
    let (output_types, outputs) = tensors(session.outputs())?;
    let batched = is_batched(&inputs, &outputs);
    let ports = |outlets: &[ort::value::Outlet], types: &[_], shapes: &[(Vec<i64>, _)]| {
        let each = outlets.iter().zip(types).zip(shapes);
        each.map(|((outlet, ty), (shape, _))| Port::new(outlet.name(), *ty, shape, batched))
            .collect::<Result<Vec<_>, _>>()
    };
    let inputs = ports(session.inputs(), &input_types, &inputs)?;
    let outputs = ports(session.outputs(), &output_types, &outputs)?;
    let output_schema = Schema::new(outputs.iter().map(Port::field).collect::<Vec<_>>());
    Ok(Ports {
        inputs,
        outputs,
        batched,
        output_schema: Arc::new(output_schema),
    })
}

/// What an input or output is that is no tensor.
fn kind(value: &ort::value::ValueType) -> &'static str {
    match value {
        ort::value::ValueType::Sequence(_) => "a sequence",
        ort::value::ValueType::Map { .. } => "a map",
        ort::value::ValueType::Optional(_) => "optional",
        _ => "no tensor",
    }
}

impl Backend for TensorModel {
    fn capacity(&self) -> usize {
        self.config.tensor_streams.max(1)
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

/// Refuses a batch that is not what the model takes, or too much at once.
fn check(
    signature: &Signature,
    config: &OnnxConfig,
    rows: &RecordBatch,
) -> Result<(), PredictError> {
    signature.check_input(&rows.schema())?;
    if config.max_rows < rows.num_rows() {
        return Err(PredictError::new(
            ErrorCode::TooLarge,
            format!(
                "a batch has {} rows, and may have {}; send several",
                rows.num_rows(),
                config.max_rows
            ),
        ));
    }
    Ok(())
}

#[async_trait]
impl Predict for TensorModel {
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        self.signature.check_input(&request.input.schema())?;
        let (signature, config) = (self.signature.clone(), self.config);
        let (queue, rows_of_run) = (self.queue.clone(), self.rows_of_run);
        let schema = self.signature.output.clone();
        let batches = try_stream! {
            let mut input = request.input.into_stream();
            while let Some(rows) = input.try_next().await? {
                check(&signature, &config, &rows)?;
                let most = rows_of_run.map_or(rows.num_rows(), NonZeroUsize::get);
                for start in (0..rows.num_rows()).step_by(most.max(1)) {
                    let length = most.min(rows.num_rows() - start);
                    yield queue.run(rows.slice(start, length)).await?;
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
