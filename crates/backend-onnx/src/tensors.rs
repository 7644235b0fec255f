//! Tensor models: rows in, rows out, in order.
//!
//! One thread owns the session ([`queue`]) and runs one batch at a time ([`run`]), or those of
//! several requests together where the model's files say so ([`merged`]). A run whose callers have
//! gone is stopped.

#[cfg(test)]
mod addresses;
mod decode;
mod encode;
mod failure;
mod merged;
mod queue;
mod run;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

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
use crate::overrides::{self, Overrides};
use crate::triton::Declared;
use crate::{OnnxConfig, Runtime, graph, session};

pub(crate) type Options = RunOptions<NoSelectedOutputs>;

/// The longest that a model waits for more rows, whatever its files say.
const LONGEST_WINDOW: Duration = Duration::from_secs(1);

/// How rows become runs, as a model's files say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Batching {
    /// The most rows of one run; more are several runs.
    most: Option<NonZeroUsize>,
    /// Whether the rows of several requests may be in one run.
    merges: bool,
    /// How long an idle model waits for more rows.
    window: Duration,
}

impl Batching {
    /// As `config.pbtxt` says, and `model.toml`, which has the last word.
    pub(crate) fn of(declared: Option<&Declared>, own: &Overrides) -> Self {
        let declared = declared.cloned().unwrap_or_default();
        let most = own.max_batch_rows.unwrap_or(declared.max_batch_size);
        let window = own
            .batch_window_us
            .map(|us| Duration::from_micros(us.into()));
        let declared_merges = declared.merges.is_some() && 0 < declared.max_batch_size;
        Self {
            most: NonZeroUsize::new(most),
            merges: own.max_batch_rows.is_some() || declared_merges,
            window: window
                .or(declared.merges)
                .unwrap_or_default()
                .min(LONGEST_WINDOW),
        }
    }

    fn most(self) -> usize {
        self.most.map_or(usize::MAX, NonZeroUsize::get)
    }

    /// For these ports.
    ///
    /// # Errors
    /// `InvalidInput` when `model.toml` would have rows merged and the graph has no batch.
    fn suited(mut self, ports: &Ports, own: bool) -> Result<Self, PredictError> {
        if own && self.merges && !ports.batched {
            return Err(PredictError::invalid(format!(
                "{}: 'max_batch_rows' is set, but the first dimension of an input or output is no \
                 batch; leave it out",
                overrides::FILE
            )));
        }
        self.merges &= ports.batched;
        Ok(self)
    }
}

/// A loaded tensor model.
struct TensorModel {
    model: ModelName,
    signature: Signature,
    config: OnnxConfig,
    batching: Batching,
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
    own: &Overrides,
    config: OnnxConfig,
) -> Result<Arc<dyn Backend>, PredictError> {
    let (session, place) = session::build_placed(runtime, path, &config)?;
    if let Some(declared) = declared {
        declared.check(session.inputs(), session.outputs())?;
    }
    let ports = ports(&session)?;
    let batching = Batching::of(declared, own).suited(&ports, own.max_batch_rows.is_some())?;
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
        batching,
    )?;
    Ok(Arc::new(TensorModel {
        model,
        signature,
        config,
        batching,
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
        let (queue, most) = (self.queue.clone(), self.batching.most());
        let schema = self.signature.output.clone();
        let batches = try_stream! {
            let mut input = request.input.into_stream();
            while let Some(rows) = input.try_next().await? {
                check(&signature, &config, &rows)?;
                for start in (0..rows.num_rows()).step_by(most) {
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
