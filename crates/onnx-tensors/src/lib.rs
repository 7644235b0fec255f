//! Tensor models: one output row for each input row, in order.
//!
//! One thread owns each session (`queue`) and runs one batch at a time (`run`). If the model's
//! files allow it, one run takes the batches of several requests (`merged`). A run is stopped when
//! all of its callers have gone.

#[cfg(test)]
mod addresses;
mod columns;
mod decode;
mod encode;
mod job;
mod maps;
mod merged;
mod parameters;
mod ports;
mod queue;
mod run;
mod sequence;
mod wait;
mod warm;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Schema, SchemaRef};
use async_stream::try_stream;
use async_trait::async_trait;
use futures::TryStreamExt;
use volley_backend::Backend;
use volley_types::signature::{ModelMetadata, with_labels, with_octets};
use volley_types::{
    ChunkStream, ErrorCode, ModelName, ModelRef, Predict, PredictError, PredictRequest, Signature,
    Task,
};

use self::ports::Files;
use self::ports::Ports;
use self::queue::RunQueue;
use self::sequence::{SequenceStep, SequenceTable};
use self::wait::WaitOptions;
use crate::columns::Port;
use volley_model_directory::overrides;
use volley_model_directory::overrides::Overrides;
use volley_model_directory::triton::{LONGEST_WINDOW, Sequences, TritonConfig};
use volley_onnx_runtime::{OnnxConfig, Runtime, graph, session};

/// How rows are grouped into runs, from a model's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Batching {
    /// Maximum number of rows of one run; larger batches are split.
    most: Option<NonZeroUsize>,
    /// Whether one run may take the rows of several requests.
    merges: bool,
    /// Preferred sizes of such a run in rows, used if the waiting batches allow one.
    preferred: Arc<[usize]>,
    /// Time that an idle model waits for more rows.
    window: Duration,
}

impl Batching {
    /// Merges `config.pbtxt` and `model.toml`. The latter takes precedence.
    pub(crate) fn of(declared: Option<&TritonConfig>, own: &Overrides) -> Self {
        let declared = declared.cloned().unwrap_or_default();
        let most = own.max_batch_rows.unwrap_or(declared.max_batch_size);
        let window = own
            .batch_window_us
            .map(|us| Duration::from_micros(us.into()));
        let merges = declared
            .merges
            .or(declared.sequences.as_ref().map(|it| it.window));
        let declared_merges = merges.is_some() && 0 < declared.max_batch_size;
        let preferred = match &declared.sequences {
            Some(sequences) => sequences.preferred.clone(),
            None => declared.preferred,
        };
        Self {
            most: NonZeroUsize::new(most),
            merges: own.max_batch_rows.is_some() || declared_merges,
            preferred: preferred.into(),
            window: window.or(merges).unwrap_or_default().min(LONGEST_WINDOW),
        }
    }

    fn most(&self) -> usize {
        self.most.map_or(usize::MAX, NonZeroUsize::get)
    }

    /// Number of rows at which the model stops waiting for more.
    fn full(&self) -> usize {
        let preferred = self.preferred.iter().max();
        preferred.map_or(self.most(), |size| self.most().min(*size))
    }

    /// Limits the rows of a run to those whose maps, of `map_bytes` for each row, take at most
    /// `limit` bytes.
    fn limit_maps(&mut self, map_bytes: u64, limit: Option<u64>) {
        if let (Some(most), Some(limit)) = (self.most, limit) {
            let rows = limit.checked_div(map_bytes).unwrap_or(u64::MAX).max(1);
            let rows = usize::try_from(rows).unwrap_or(usize::MAX);
            self.most = NonZeroUsize::new(most.get().min(rows));
        }
    }

    /// Adapts the settings to these ports.
    ///
    /// # Errors
    /// `InvalidInput` when `model.toml` enables merging and the graph has no batch dimension.
    fn suited(mut self, ports: &Ports, own: bool) -> Result<Self, PredictError> {
        if own && self.merges && !ports.batched {
            return Err(PredictError::invalid(format!(
                "{}: 'max_batch_rows' is set, but the first dimension of an input or output is \
                 not a batch; leave it out",
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
    /// The schema of answers: the signature's output without the names of values.
    answer: SchemaRef,
    config: OnnxConfig,
    batching: Batching,
    memory_bytes: u64,
    /// Memory of the maps of one row, in bytes: see [`maps::row_bytes`].
    map_bytes: u64,
    queue: Arc<RunQueue>,
    sequences: Option<Arc<SequenceTable>>,
}

/// Loads a graph, and runs the warm-up samples of `declared`. Blocks, and must be called inside a
/// tokio runtime.
///
/// Streams of the model are cancel safe: dropping one removes its batch from the queue or stops its
/// run, unless the run has other callers.
///
/// # Errors
/// `InvalidInput` when the graph cannot be loaded, does not fit `declared` or `own`, or has inputs
/// or outputs without Arrow counterpart; `Internal` when its threads cannot be started.
pub fn load(
    runtime: &Runtime,
    path: &Path,
    model: ModelName,
    declared: Option<&TritonConfig>,
    own: &Overrides,
    mut config: OnnxConfig,
) -> Result<Arc<dyn Backend>, PredictError> {
    let (session, place) = session::build_placed(runtime, path, &config)?;
    let outline = graph::outline(path)?;
    if let Some(declared) = declared {
        declared.check(session.inputs(), session.outputs(), &outline.shapeless)?;
    }
    let files = Files {
        outline: &outline,
        own,
        declared,
    };
    let ports = Arc::new(ports::read(&session, &files)?);
    let mut batching = Batching::of(declared, own).suited(&ports, own.max_batch_rows.is_some())?;
    let map_bytes = maps::row_bytes(&ports.outputs);
    batching.limit_maps(map_bytes, config.memory_limit);
    let rows = batching.most.map_or(1, NonZeroUsize::get) * config.instances.max(1);
    let sequences = declared.and_then(|declared| declared.sequences.clone());
    let signature = signature(&ports, declared, sequences.as_ref());
    let answer = unnamed(&signature.output, &ports);
    let served = ModelMetadata {
        versions: Vec::new(),
        config: declared.map(|declared| declared.config(path, told(&ports, declared))),
    };
    let signature = served.on(signature);
    let mut runners = vec![run::Runner::new(session, ports.clone())];
    for _ in 1..config.instances {
        let (session, _) = session::build_placed(runtime, path, &config)?;
        runners.push(run::Runner::new(session, ports.clone()));
    }
    for sample in declared.iter().flat_map(|declared| &declared.warm_up) {
        warm::up(&mut runners, &ports, sample, config.run_timeout)?;
    }
    let sequences = sequences
        .map(|it| SequenceTable::new(it, ports.clone(), answer.clone(), rows))
        .transpose()?;
    let policies = declared.map(|declared| declared.queue.clone());
    let policies = policies.unwrap_or_default();
    if let Some(most) = policies.most() {
        // Requests beyond the policy's limit must reach this queue and be rejected here, not wait
        // elsewhere.
        config.tensor_streams = config.tensor_streams.max(most.saturating_add(2 * rows));
    }
    let queue = RunQueue::start(
        &model,
        runners,
        config.tensor_streams.max(1),
        config.run_timeout,
        place,
        batching.clone(),
        policies,
    )?;
    Ok(Arc::new(TensorModel {
        model,
        signature,
        answer,
        config,
        batching,
        memory_bytes: config.weights(&outline),
        map_bytes,
        queue: Arc::new(queue),
        sequences: sequences.map(Arc::new),
    }))
}

/// The columns of callers: the graph's columns without controls and states of sequences.
fn signature(
    ports: &Ports,
    declared: Option<&TritonConfig>,
    sequences: Option<&Sequences>,
) -> Signature {
    let given = |port: &&Port| !sequences.is_some_and(|it| it.gives(&port.name));
    let fields = ports.inputs.iter().filter(given);
    let fields = fields.map(|port| match port.element {
        DataType::Utf8 => with_octets(port.field()),
        _ => port.field(),
    });
    let kept = |port: &&Port| !sequences.is_some_and(|it| it.keeps(&port.name));
    let outputs: Vec<Port> = ports.outputs.iter().filter(kept).cloned().collect();
    Signature {
        task: Task::Tensors,
        input: Arc::new(Schema::new(fields.collect::<Vec<_>>())),
        output: Arc::new(named(&outputs, declared)),
    }
}

/// The columns of an answer, without the names of their values.
fn unnamed(output: &Schema, ports: &Ports) -> SchemaRef {
    if output.fields().len() == ports.outputs.len() {
        return ports.output_schema.clone();
    }
    let fields = output.fields().iter();
    let plain = fields.filter_map(|field| ports.output_schema.field_with_name(field.name()).ok());
    Arc::new(Schema::new(plain.cloned().collect::<Vec<_>>()))
}

/// The inputs and outputs of a graph in Triton's terms, as defaults for what the file does not
/// declare.
fn told(ports: &Ports, declared: &TritonConfig) -> [Vec<(String, String, Vec<i64>)>; 2] {
    let told = |ports: &[Port], batched: bool| {
        let rows = (batched && declared.max_batch_size == 0).then_some(-1);
        let told = ports.iter().map(|port| {
            let dims = rows.into_iter().chain(port.row_shape.iter().copied());
            (port.name.clone(), port.config_type(), dims.collect())
        });
        told.collect()
    };
    [
        told(&ports.inputs, ports.batched),
        told(&ports.outputs, ports.batched),
    ]
}

/// The columns of an answer, with the names of their values if the files declare them.
fn named(outputs: &[Port], declared: Option<&TritonConfig>) -> Schema {
    let fields = outputs.iter().map(|port| {
        let labels = declared.and_then(|declared| declared.labels_of(&port.name));
        match (labels, &port.classes) {
            (Some(labels), _) => with_labels(port.field(), labels),
            (None, Some(classes)) => with_labels(port.field(), &classes.names()),
            (None, None) => port.field(),
        }
    });
    Schema::new(fields.collect::<Vec<_>>())
}

impl Backend for TensorModel {
    fn capacity(&self) -> usize {
        self.config.tensor_streams.max(1)
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

/// Rejects a batch that does not fit the signature, has too many rows, or whose answer as maps,
/// with `map_bytes` for each row, exceeds the memory limit of a run.
fn check(
    signature: &Signature,
    config: &OnnxConfig,
    map_bytes: u64,
    rows: &RecordBatch,
) -> Result<(), PredictError> {
    signature.check_input(&rows.schema())?;
    if config.max_rows < rows.num_rows() {
        return Err(PredictError::new(
            ErrorCode::TooLarge,
            format!(
                "a batch has {} rows; the limit is {}; send several batches",
                rows.num_rows(),
                config.max_rows
            ),
        ));
    }
    let maps = map_bytes.saturating_mul(rows.num_rows() as u64);
    match config.memory_limit {
        Some(limit) if limit < maps => Err(PredictError::new(
            ErrorCode::TooLarge,
            format!(
                "the probabilities of {} rows take more memory than the limit of {} MiB; send \
                 fewer rows, or raise 'models.memory_budget'",
                rows.num_rows(),
                limit >> 20
            ),
        )),
        _ => Ok(()),
    }
}

#[async_trait]
impl Predict for TensorModel {
    async fn predict(&self, mut request: PredictRequest) -> Result<ChunkStream, PredictError> {
        self.signature.check(&mut request.input)?;
        parameters::check(&request.parameters, request.dialect)?;
        let (signature, config) = (self.signature.clone(), self.config);
        let map_bytes = self.map_bytes;
        let (queue, most) = (self.queue.clone(), self.batching.most());
        let schema = self.answer.clone();
        let wait = WaitOptions::read(&request.parameters, queue.policies())?;
        if let Some(table) = self.sequences.clone() {
            let step = SequenceStep::read(&request.parameters)?;
            let batches = try_stream! {
                let mut input = request.input.into_inner().into_stream();
                while let Some(rows) = input.try_next().await? {
                    check(&signature, &config, map_bytes, &rows)?;
                    yield table.step(&step, &rows, |whole| queue.run(whole, wait)).await?;
                }
            };
            return Ok(ChunkStream::new(schema, batches));
        }
        let batches = try_stream! {
            let mut input = request.input.into_inner().into_stream();
            while let Some(rows) = input.try_next().await? {
                check(&signature, &config, map_bytes, &rows)?;
                for start in (0..rows.num_rows()).step_by(most) {
                    let length = most.min(rows.num_rows() - start);
                    yield queue.run(rows.slice(start, length), wait).await?;
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
