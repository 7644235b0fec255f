//! A scripted model, a server on loopback, and waiting on conditions.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use futures::{StreamExt, stream};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;
use volley_flight::client::{FlightClient, FlightClientConfig};
use volley_flight::server::{FlightServer, FlightServerConfig};
use volley_flight::transport;
use volley_security::Authenticator;
use volley_types::{
    ChunkStream, ErrorCode, ErrorOrigin, Input, ModelName, ModelRef, Predict, PredictError,
    PredictRequest, Signature, Task,
};

/// What a model of this name does:
/// - `double`: answers each batch of `x` with `y = 2x`, as it arrives;
/// - `flood`: 64 KiB rows without end;
/// - `drip`: one row, then nothing, ever;
/// - `mute`: nothing, ever;
/// - `late_error`: three rows, then an error;
/// - `refuse`: refuses at once, with advice;
/// - `panic`: one row, then a panic;
/// - `ready`: 200 one-row batches, all ready at once.
pub(crate) const MODELS: [&str; 8] = [
    "double",
    "flood",
    "drip",
    "mute",
    "late_error",
    "refuse",
    "panic",
    "ready",
];

/// Plays [`MODELS`].
pub(crate) struct Scripted {
    /// Streams that were started and not dropped yet.
    pub(crate) running: Arc<AtomicUsize>,
    /// Requests whose input was known to be whole.
    pub(crate) whole: AtomicUsize,
    /// Requests whose input was a stream.
    pub(crate) streamed: AtomicUsize,
}

pub(crate) fn input_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, false)]))
}

fn signature() -> Signature {
    Signature {
        task: Task::Tensors,
        input: input_schema(),
        output: Arc::new(Schema::new(vec![
            Field::new("y", DataType::Int64, false),
            Field::new("pad", DataType::Utf8, true),
        ])),
    }
}

pub(crate) fn numbers(values: &[i64]) -> RecordBatch {
    let column: ArrayRef = Arc::new(Int64Array::from(values.to_vec()));
    RecordBatch::try_new(input_schema(), vec![column]).unwrap()
}

fn answer(values: Vec<i64>, pad_bytes: usize) -> RecordBatch {
    let pad = "x".repeat(pad_bytes);
    let pads = StringArray::from_iter_values(values.iter().map(|_| pad.as_str()));
    let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(values)), Arc::new(pads)];
    RecordBatch::try_new(signature().output, columns).unwrap()
}

pub(crate) fn column(batch: &RecordBatch, name: &str) -> Vec<i64> {
    let column = batch.column_by_name(name).unwrap();
    let numbers = column.as_any().downcast_ref::<Int64Array>().unwrap();
    numbers.values().to_vec()
}

struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(crate) fn overloaded() -> PredictError {
    PredictError::new(ErrorCode::Overloaded, "all places are taken")
        .with_retry_after(Duration::from_millis(1500))
        .with_origin(ErrorOrigin::Worker)
}

pub(crate) fn upstream_failed() -> PredictError {
    PredictError::new(ErrorCode::UpstreamFailed, "the upstream said 500")
        .with_origin(ErrorOrigin::Model)
}

#[async_trait]
impl Predict for Scripted {
    async fn predict(&self, mut request: PredictRequest) -> Result<ChunkStream, PredictError> {
        // As a coordinator does.
        request.input = signature().conform(request.input)?;
        match &*request.input {
            Input::Batch(_) => self.whole.fetch_add(1, Ordering::SeqCst),
            Input::Stream { .. } => self.streamed.fetch_add(1, Ordering::SeqCst),
        };
        let rows = |n: i64| stream::iter((0..n).map(|i| Ok(answer(vec![i], 0))));
        let batches = match request.model.name.as_str() {
            "refuse" => return Err(overloaded()),
            "double" => request
                .input
                .into_inner()
                .into_stream()
                .map(|batch| {
                    let doubled = column(&batch?, "x")
                        .iter()
                        .map(|x| x.wrapping_mul(2))
                        .collect();
                    Ok(answer(doubled, 0))
                })
                .boxed(),
            "flood" => stream::iter(0..)
                .then(|i| async move {
                    tokio::task::yield_now().await;
                    Ok(answer(vec![i], 64 << 10))
                })
                .boxed(),
            "drip" => rows(1).chain(stream::pending()).boxed(),
            "mute" => stream::pending().boxed(),
            "late_error" => rows(3)
                .chain(stream::iter([Err(upstream_failed())]))
                .boxed(),
            "panic" => rows(1)
                .chain(stream::once(async { panic!("the model is broken") }))
                .boxed(),
            "ready" => rows(200).boxed(),
            other => panic!("signature() let {other} through"),
        };
        self.running.fetch_add(1, Ordering::SeqCst);
        Ok(ChunkStream::new(signature().output, batches).holding(Running(self.running.clone())))
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        if self.models().await.contains(&model.name) {
            return Ok(signature());
        }
        Err(PredictError::new(
            ErrorCode::NotFound,
            format!("model '{model}' is not registered"),
        ))
    }

    async fn models(&self) -> Vec<ModelName> {
        MODELS.map(|name| ModelName::new(name).unwrap()).to_vec()
    }
}

pub(crate) fn scripted() -> Scripted {
    Scripted {
        running: Arc::default(),
        whole: AtomicUsize::new(0),
        streamed: AtomicUsize::new(0),
    }
}

/// A server on loopback with its model and a client of it.
pub(crate) struct Node {
    pub(crate) model: Arc<Scripted>,
    pub(crate) client: FlightClient,
    pub(crate) address: String,
    _serving: AbortOnDropHandle<()>,
}

impl Node {
    pub(crate) async fn start() -> Self {
        Self::with(FlightServerConfig::default(), 1).await
    }

    pub(crate) async fn with(config: FlightServerConfig, connections: usize) -> Self {
        Self::guarded(config, connections, Authenticator::open()).await
    }

    pub(crate) async fn guarded(
        config: FlightServerConfig,
        connections: usize,
        gate: Authenticator,
    ) -> Self {
        let model = Arc::new(scripted());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let service = FlightServer::new(model.clone(), config)
            .guarded(Arc::new(gate))
            .into_service();
        let serving = tokio::spawn(async move {
            transport::server_builder()
                .add_service(service)
                .serve_with_incoming(transport::incoming(listener))
                .await
                .unwrap();
        });
        let config = FlightClientConfig {
            connections,
            ..FlightClientConfig::default()
        };
        Self {
            model,
            client: FlightClient::new(&address, config).unwrap(),
            address,
            _serving: AbortOnDropHandle::new(serving),
        }
    }

    /// The generated client, for what ours never sends.
    pub(crate) async fn raw(&self) -> FlightServiceClient<Channel> {
        let endpoint = transport::endpoint(&self.address, SOON).unwrap();
        FlightServiceClient::new(endpoint.connect().await.unwrap())
    }

    pub(crate) async fn all_stopped(&self) {
        eventually("every stream has stopped", || async {
            self.model.running.load(Ordering::SeqCst) == 0
        })
        .await;
    }
}

pub(crate) fn request(model: &str, values: &[i64]) -> PredictRequest {
    PredictRequest::new(model.parse().unwrap(), Input::Batch(numbers(values)))
}

/// How long a test waits for what must happen.
const SOON: Duration = Duration::from_secs(60);

/// Waits for `condition`.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, condition: impl Fn() -> F) {
    let waited = tokio::time::timeout(SOON, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    waited
        .await
        .unwrap_or_else(|_| panic!("not in time: {what}"));
}

/// `work`, which must be done in time.
pub(crate) async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, work)
        .await
        .unwrap_or_else(|_| panic!("not in time: {what}"))
}
