//! Tensor models: rows in, rows out, in order.
//!
//! One thread owns each session ([`queue`]) and runs one batch at a time ([`run`]), or those of
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
mod warm;

use std::collections::BTreeSet;
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
use volley_types::signature::with_labels;
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Batching {
    /// The most rows of one run; more are several runs.
    most: Option<NonZeroUsize>,
    /// Whether the rows of several requests may be in one run.
    merges: bool,
    /// Sizes that such a run has where what waits can make one, in rows.
    preferred: Arc<[usize]>,
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
            preferred: declared.preferred.into(),
            window: window
                .or(declared.merges)
                .unwrap_or_default()
                .min(LONGEST_WINDOW),
        }
    }

    fn most(&self) -> usize {
        self.most.map_or(usize::MAX, NonZeroUsize::get)
    }

    /// Rows for which no more are waited for.
    fn full(&self) -> usize {
        let preferred = self.preferred.iter().max();
        preferred.map_or(self.most(), |size| self.most().min(*size))
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
    /// What answers have: the signature's output without the names of values.
    answer: SchemaRef,
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
    let outline = graph::outline(path)?;
    if let Some(declared) = declared {
        declared.check(session.inputs(), session.outputs(), &outline.shapeless)?;
    }
    let shapes = Shapes {
        shapeless: &outline.shapeless,
        own,
        declared,
    };
    let ports = Arc::new(ports(&session, &shapes)?);
    let batching = Batching::of(declared, own).suited(&ports, own.max_batch_rows.is_some())?;
    let input = Schema::new(ports.inputs.iter().map(Port::field).collect::<Vec<_>>());
    let signature = Signature {
        task: Task::Tensors,
        input: Arc::new(input),
        output: Arc::new(named(&ports.output_schema, declared)),
    };
    let mut runners = vec![run::Runner::new(session, ports.clone())];
    while runners.len() < config.instances {
        let (session, _) = session::build_placed(runtime, path, &config)?;
        runners.push(run::Runner::new(session, ports.clone()));
    }
    for sample in declared.iter().flat_map(|declared| &declared.warm_up) {
        warm::up(&mut runners, &ports, sample, config.run_timeout)?;
    }
    let queue = Queue::start(
        &model,
        runners,
        config.tensor_streams.max(1),
        config.run_timeout,
        place,
        batching.clone(),
    )?;
    Ok(Arc::new(TensorModel {
        model,
        signature,
        answer: ports.output_schema.clone(),
        config,
        batching,
        memory_bytes: config.weights(&outline),
        queue: Arc::new(queue),
    }))
}

/// The columns of an answer, with the names of their values where the files have them.
fn named(outputs: &Schema, declared: Option<&Declared>) -> Schema {
    let fields = outputs.fields().iter().map(|field| {
        let labels = declared.and_then(|declared| declared.labels_of(field.name()));
        match labels {
            Some(labels) => with_labels(field.as_ref().clone(), labels),
            None => field.as_ref().clone(),
        }
    });
    Schema::new(fields.collect::<Vec<_>>())
}

/// What the files say of the shapes of inputs and outputs.
struct Shapes<'f> {
    /// Those of which the graph tells none.
    shapeless: &'f BTreeSet<String>,
    own: &'f Overrides,
    declared: Option<&'f Declared>,
}

impl Shapes<'_> {
    /// The shape of an input or output, of which ONNX Runtime knows this much.
    ///
    /// # Errors
    /// `InvalidInput` when nothing tells it, or two things do.
    fn of(&self, name: &str, known: &[i64]) -> Result<Vec<i64>, PredictError> {
        // Without dimensions: a single number, or nobody knows.
        let unknown = known.is_empty() && self.shapeless.contains(name);
        let declared = || self.declared.and_then(|declared| declared.shape_of(name));
        match (unknown, self.own.shapes.get(name)) {
            (true, Some(shape)) => Ok(shape.clone()),
            (false, Some(_)) => Err(PredictError::invalid(format!(
                "{}: 'shapes' has '{name}', whose shape the graph tells itself",
                overrides::FILE
            ))),
            (false, None) => Ok(known.to_vec()),
            (true, None) => declared().ok_or_else(|| {
                PredictError::invalid(format!(
                    "the graph does not tell how many dimensions '{name}' has; give it a shape in \
                     the model, or in {}, as {name} = [-1, -1] below [shapes]",
                    overrides::FILE
                ))
            }),
        }
    }
}

fn ports(session: &ort::session::Session, told: &Shapes<'_>) -> Result<Ports, PredictError> {
    let tensors = |outlets: &[ort::value::Outlet]| {
        let read = |outlet: &ort::value::Outlet| match outlet.dtype() {
            ort::value::ValueType::Tensor {
                ty,
                shape,
                dimension_symbols,
            } => {
                let shape = told.of(outlet.name(), shape)?;
                Ok((*ty, (shape, dimension_symbols.to_vec())))
            }
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
        each.map(|((outlet, ty), (shape, _))| {
            let port = Port::new(outlet.name(), *ty, shape, batched)?;
            let reshape = told.declared.and_then(|it| it.reshape_of(outlet.name()));
            match reshape {
                Some((seen, inner)) => port.reshaped(seen, inner),
                None => Ok(port),
            }
        })
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
        let schema = self.answer.clone();
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
