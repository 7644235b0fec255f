//! Text encoders: one vector, score, list of labels, spans or weighted terms for each row of text.
//!
//! The model's directory determines its task and settings (`settings`). Rows are tokenised in the
//! caller's task (`texts`) and queued for the threads that own the sessions (`session_pool`,
//! `thread`). Waiting rows of all requests are sorted by length (`batcher`) and run in batches
//! within a token budget (`plan`, `run`). Recurring shapes reuse bound tensors (`binding_cache`).
//! By default no thread waits for more rows: on a CPU a larger batch gains little, and waiting adds
//! latency. The caller's task converts the results to columns (`columns`).

pub mod bare;
mod batcher;
mod binding_cache;
mod columns;
mod padding;
mod parameters;
mod plan;
mod pooling;
mod run;
mod session_pool;
mod settings;
mod texts;
mod thread;
mod token_view;

use std::path::Path;
use std::sync::Arc;

use arrow_array::RecordBatch;
use async_stream::try_stream;
use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream};
use volley_backend::Backend;
use volley_onnx_runtime::ort::session::Session;
use volley_types::chunk::generation_schema;
use volley_types::{
    ChunkStream, ErrorCode, Input, ModelName, ModelRef, Parameters, Predict, PredictError,
    PredictRequest, Signature, Task,
};

use self::batcher::RequestKey;
use self::columns::ColumnBuilder;
use self::parameters::EncodeParameters;
use self::plan::Budget;
use self::run::Runner;
use self::session_pool::SessionPool;
use self::settings::EncoderSettings;
use self::texts::Texts;
use self::thread::{BatchWindow, EncodeQueue};
use self::token_view::TokenView;
use volley_model_directory::layout;
use volley_model_directory::overrides::VARIANT;
use volley_model_directory::registered::RegisteredConfig;
use volley_onnx_runtime::run_timeout::RunTimeout;
use volley_onnx_runtime::session::ExecutionDevice;
use volley_onnx_runtime::{Device, OnnxConfig, Runtime, graph, session};

/// Maximum number of pieces of one request that are processed concurrently.
const UNDER_WAY: usize = 4;

/// Rows of one piece; a large batch is answered piece by piece. A piece spans several sort windows,
/// so splitting does not make sorting less effective.
const PIECE_ROWS: usize = 1_024;

/// Rows of one piece if each row returns the vectors of all its tokens.
const WIDE_ROWS: usize = 4;

/// Rows of at most this many bytes are tokenised on the current thread, which takes less time than
/// waking another thread.
const SHORT_BYTES: usize = 2_048;

/// A loaded text encoder.
struct Encoder {
    model: ModelName,
    signature: Signature,
    capacity: usize,
    memory_bytes: u64,
    inner: Arc<Inner>,
}

struct Inner {
    config: OnnxConfig,
    signature: Signature,
    texts: Texts,
    shape: ColumnBuilder,
    queue: EncodeQueue,
}

/// Loads the directory of a text encoder and warms up its sessions. Blocks, and must be called
/// inside a tokio runtime.
///
/// Streams of the model are cancel safe: dropping one removes its waiting rows from the queue.
///
/// # Errors
/// `InvalidInput` when a file of the directory is malformed, the graph does not fit the task, or
/// the model cannot run; `Internal` when its threads cannot be started.
pub fn load(
    runtime: &Runtime,
    directory: &Path,
    model: ModelName,
    defaults: &Parameters,
    registered: &RegisteredConfig,
    config: OnnxConfig,
) -> Result<Arc<dyn Backend>, PredictError> {
    let mut settings = EncoderSettings::read(directory, registered)?;
    let path = directory.join(layout::graph(directory, defaults.text(VARIANT).as_deref())?);
    let bytes = config.weights_of_session(&graph::outline(&path)?);
    let lanes = SessionPool::of(&config, bytes, session::cores());
    let build = |threads| {
        let config = OnnxConfig { threads, ..config };
        session::build_placed(runtime, &path, &config)
    };
    let (session, place) = build(lanes.threads)?;
    let lanes = lanes.on(place, &config);
    let outputs: Vec<_> = session.outputs().iter().map(|one| one.name()).collect();
    settings.suit(&outputs);
    let texts = Texts::read(directory, &settings)?;
    let first = (session, place);
    let WarmSessions { runners, wide } = start(&lanes, first, build, &settings, &config)?;
    let width = runners[0].0.width();
    settings.name_labels(width);
    let each = runners[0].0.has_token_vectors();
    let shape = ColumnBuilder::new(&settings, &texts, width, each, defaults)?;
    settings.check_width(shape.usual())?;
    let signature = match settings.task {
        Task::Rerank => Signature::rerank(),
        Task::Classify => Signature::classify(),
        Task::ClassifyTokens => Signature::classify_tokens(),
        Task::EncodeSparse => Signature::encode_sparse(),
        _ => Signature::embed(shape.usual()),
    }
    .within(settings.max_length);
    let memory_bytes = lanes.bytes(bytes);
    let capacity = config.tensor_streams.max(1);
    let pace = BatchWindow {
        budget: settings.budget(place, &lanes),
        window: settings.window,
    };
    let queue = EncodeQueue::start(&model, runners, wide, pace, capacity)?;
    let inner = Inner {
        config,
        signature: signature.clone(),
        texts,
        shape,
        queue,
    };
    Ok(Arc::new(Encoder {
        model,
        signature,
        capacity,
        memory_bytes,
        inner: Arc::new(inner),
    }))
}

/// All sessions of a text encoder, after their warm-up.
struct WarmSessions {
    runners: Vec<(Runner, RunTimeout)>,
    wide: Option<Runner>,
}

/// Builds the sessions after the `first` concurrently, and warms up all of them.
fn start(
    lanes: &SessionPool,
    first: (Session, ExecutionDevice),
    build: impl Fn(usize) -> Result<(Session, ExecutionDevice), PredictError> + Sync,
    settings: &EncoderSettings,
    config: &OnnxConfig,
) -> Result<WarmSessions, PredictError> {
    let warm = |(session, place)| {
        let mut runner = Runner::new(session, place, settings)?;
        let mut watch = RunTimeout::new(config.run_timeout)?;
        runner.warm_up(&mut watch)?;
        Ok::<_, PredictError>((runner, watch))
    };
    let mut runners = vec![warm(first)?];
    let others = std::iter::repeat_n(lanes.threads, lanes.count - 1).chain(lanes.wide);
    let built = std::thread::scope(|scope| {
        let build = &build;
        let spawn = |threads| scope.spawn(move || build(threads));
        let building: Vec<_> = others.map(spawn).collect();
        let built = building.into_iter().map(|one| {
            let panicked = |_| PredictError::internal("building a session panicked", "");
            one.join().map_err(panicked)?
        });
        built.collect::<Result<Vec<_>, _>>()
    });
    for session in built? {
        runners.push(warm(session)?);
    }
    let wide = lanes.wide.and_then(|_| runners.pop());
    Ok(WarmSessions {
        runners,
        wide: wide.map(|(wide, _)| wide),
    })
}

/// Estimates the bytes of the weights of all sessions of a text encoder before it is loaded.
pub fn estimate(config: &OnnxConfig, graph: &graph::GraphSummary) -> u64 {
    let bytes = config.weights_of_session(graph);
    SessionPool::of(config, bytes, session::cores()).bytes(bytes)
}

/// The token ids of a text, for bare runs.
pub(crate) fn bare_tokens(directory: &Path, text: &str) -> Result<Vec<i64>, PredictError> {
    let texts = Texts::read(
        directory,
        &EncoderSettings::read(directory, &RegisteredConfig::default())?,
    )?;
    let column: arrow_array::ArrayRef = Arc::new(arrow_array::StringArray::from(vec![text]));
    let rows = RecordBatch::try_from_iter([(volley_types::signature::TEXT, column)])
        .map_err(|error| PredictError::internal("a row could not be made", error))?;
    let tokens = texts
        .tokenise(&rows, 0, EncodeParameters::default())?
        .into_iter()
        .next()
        .unwrap_or_default();
    Ok(tokens.ids.iter().map(|id| i64::from(*id)).collect())
}

/// The settings of an encoder's files, for people.
///
/// # Errors
/// `InvalidInput` when a file is malformed.
pub fn details(
    directory: &Path,
    graph: &Path,
    registered: &RegisteredConfig,
    config: &OnnxConfig,
) -> Result<Vec<(&'static str, String)>, PredictError> {
    let settings = EncoderSettings::read(directory, registered)?;
    let mut details = vec![("longest text", format!("{} tokens", settings.max_length))];
    match settings.task {
        Task::Embed => {
            let pooling = format!("{:?}", settings.pooling).to_lowercase();
            details.push(("pooling", pooling));
            let normalized = if settings.normalize { "yes" } else { "no" };
            details.push(("normalized", normalized.to_owned()));
            for (name, prefix) in [
                ("query prefix", &settings.query_prefix),
                ("passage prefix", &settings.passage_prefix),
            ] {
                if !prefix.is_empty() {
                    details.push((name, format!("{prefix:?}")));
                }
            }
        }
        Task::Classify | Task::ClassifyTokens => {
            details.push(("labels", settings.labels.join(", ")))
        }
        _ => {}
    }
    let activation = format!("{:?}", settings.activation).to_lowercase();
    if matches!(
        settings.task,
        Task::Rerank | Task::Classify | Task::ClassifyTokens
    ) {
        details.push(("activation", activation));
    }
    let (place, device) = match config.device {
        Device::Cuda => (ExecutionDevice::Cuda(config.gpu), "GPU"),
        Device::Cpu | Device::Auto => (ExecutionDevice::Host, "CPU"),
    };
    let bytes = config.weights_of_session(&graph::outline(&directory.join(graph))?);
    let lanes = SessionPool::of(config, bytes, session::cores());
    let Budget { tokens, rows } = settings.budget(place, &lanes);
    let batch = format!("{tokens} tokens, {rows} rows on a {device}");
    details.push(("largest run", batch));
    if place == ExecutionDevice::Host {
        details.push(("sessions", format!("{} on a CPU", lanes.told())));
    }
    Ok(details)
}

impl Backend for Encoder {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

/// Rows of one batch that are answered together.
struct Piece {
    /// Index of its first row in the batch.
    first: usize,
    rows: RecordBatch,
}

impl Inner {
    /// Splits `rows` into pieces of `step` rows.
    ///
    /// # Errors
    /// `InvalidInput` when the columns do not fit the signature; `TooLarge` for too many rows.
    fn pieces(&self, rows: &RecordBatch, step: usize) -> Result<Vec<Piece>, PredictError> {
        self.signature.check_input(&rows.schema())?;
        if self.config.max_rows < rows.num_rows() {
            return Err(PredictError::new(
                ErrorCode::TooLarge,
                format!(
                    "a batch has {} rows; the limit is {}; send several batches",
                    rows.num_rows(),
                    self.config.max_rows
                ),
            ));
        }
        let count = rows.num_rows();
        let starts = (0..count).step_by(step);
        let piece = |first| Piece {
            first,
            rows: rows.slice(first, step.min(count - first)),
        };
        Ok(starts.map(piece).collect())
    }

    /// Returns one answer row for each row of the piece, in order.
    async fn encode(
        self: Arc<Self>,
        request: RequestKey,
        piece: Piece,
        wanted: EncodeParameters,
    ) -> Result<RecordBatch, PredictError> {
        let Piece { first, rows } = piece;
        let tokenised = if bytes(&rows) <= SHORT_BYTES {
            self.texts.tokenise(&rows, first, wanted)?
        } else {
            // Tokenising many texts would block the runtime's thread for too long.
            let inner = self.clone();
            let tokenised =
                tokio::task::spawn_blocking(move || inner.texts.tokenise(&rows, first, wanted));
            tokenised
                .await
                .map_err(|error| PredictError::internal("tokenising failed", error))??
        };
        if wanted.token_vectors {
            self.shape.check_room(&tokenised)?;
        }
        let tokens = Arc::new(tokenised);
        let values = self.queue.run(request, tokens.clone()).await?;
        self.shape.columns(&tokens, values, wanted)
    }
}

impl Encoder {
    /// Answers requests about tokens, without running the model.
    fn inspect_tokens(&self, input: Input, view: TokenView) -> ChunkStream {
        let inner = self.inner.clone();
        let batches = try_stream! {
            let mut input = input.into_stream();
            let mut before = 0;
            while let Some(rows) = input.try_next().await? {
                for Piece { first, rows } in inner.pieces(&rows, PIECE_ROWS)? {
                    let inner = inner.clone();
                    let at = before + first;
                    let told = move || view.at(&inner.texts, &rows, at);
                    let told = tokio::task::spawn_blocking(told).await;
                    yield told.map_err(|error| {
                        PredictError::internal("tokenising failed", error)
                    })??;
                }
                before += rows.num_rows();
            }
        };
        ChunkStream::new(generation_schema(), batches)
    }
}

/// The pieces as a list of results; an error becomes its only item.
fn pieces(pieces: Result<Vec<Piece>, PredictError>) -> Vec<Result<Piece, PredictError>> {
    match pieces {
        Ok(pieces) => pieces.into_iter().map(Ok).collect(),
        Err(error) => vec![Err(error)],
    }
}

/// Bytes of the rows' data.
fn bytes(rows: &RecordBatch) -> usize {
    let columns = rows.columns().iter();
    let sizes = columns.map(|column| column.to_data().get_slice_memory_size());
    sizes
        .map(|size| size.unwrap_or(usize::MAX))
        .fold(0, usize::saturating_add)
}

#[async_trait]
impl Predict for Encoder {
    async fn predict(&self, mut request: PredictRequest) -> Result<ChunkStream, PredictError> {
        self.signature.check(&mut request.input)?;
        if let Some(look) = TokenView::read(&request.parameters)? {
            return Ok(self.inspect_tokens(request.input.into_inner(), look));
        }
        let wanted = self.inner.shape.wanted(&request.parameters)?;
        let step = match wanted.token_vectors {
            true => WIDE_ROWS,
            false => PIECE_ROWS,
        };
        let inner = self.inner.clone();
        let key = RequestKey::fresh();
        let batches = try_stream! {
            let input = request.input.into_inner().into_stream();
            let encoded = input
                .map_ok(|rows| stream::iter(pieces(inner.pieces(&rows, step))))
                .try_flatten()
                .map_ok(|rows| inner.clone().encode(key, rows, wanted))
                .map(|rows| async { rows?.await })
                .buffered(UNDER_WAY);
            futures::pin_mut!(encoded);
            while let Some(rows) = encoded.try_next().await? {
                if 0 < rows.num_rows() {
                    yield rows;
                }
            }
        };
        Ok(ChunkStream::new(self.signature.output.clone(), batches))
    }

    async fn signature(&self, _: &ModelRef) -> Result<Signature, PredictError> {
        Ok(self.signature.clone())
    }

    async fn models(&self) -> Vec<ModelName> {
        vec![self.model.clone()]
    }
}
