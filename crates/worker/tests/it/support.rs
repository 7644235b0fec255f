//! A heartbeat server that a test scripts, requests, and waiting with a limit.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use async_stream::stream;
use async_trait::async_trait;
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};
use volley_backend::BackendLoader;
use volley_backend::fake::{FakeLoader, Tally};
use volley_proto::report_changes::changes_from_wire;
use volley_proto::worker::v1 as wire;
use volley_proto::worker::v1::worker_service_server::{WorkerService, WorkerServiceServer};
use volley_proto::worker_report::orders_to_wire;
use volley_telemetry::Metrics;
use volley_types::registry::{
    Assignment, BackendName, ModelSource, ModelVersionSpec, ReplicaState,
};
use volley_types::*;
use volley_worker::{Worker, WorkerConfig};

/// How long a test waits for what must happen.
const SOON: Duration = Duration::from_secs(60);

/// Waits until `condition` gives a value; fails when it does not in time.
pub(crate) async fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let by = Instant::now() + SOON;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < by, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What a scripted coordinator heard and says.
struct Desk {
    orders: watch::Sender<Assignments>,
    last: Mutex<Option<WorkerReport>>,
    heard: AtomicUsize,
    open: AtomicUsize,
    stop: CancellationToken,
}

/// A heartbeat server on loopback.
pub(crate) struct Coordinator {
    pub(crate) address: SocketAddr,
    desk: Arc<Desk>,
    server: tokio::task::JoinHandle<()>,
}

impl Coordinator {
    /// On any free port.
    pub(crate) async fn start(orders: Assignments) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::serve(listener, orders)
    }

    /// On a port that an earlier one had.
    pub(crate) async fn start_at(address: SocketAddr, orders: Assignments) -> Self {
        // A connection that some program has just made may have it for a moment.
        let by = Instant::now() + SOON;
        let listener = loop {
            match TcpListener::bind(address).await {
                Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < by => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                bound => break bound.unwrap(),
            }
        };
        Self::serve(listener, orders)
    }

    fn serve(listener: TcpListener, orders: Assignments) -> Self {
        let address = listener.local_addr().unwrap();
        let desk = Arc::new(Desk {
            orders: watch::Sender::new(orders),
            last: Mutex::new(None),
            heard: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            stop: CancellationToken::new(),
        });
        let service = WorkerServiceServer::new(DeskService(desk.clone()));
        let stop = desk.stop.clone();
        let server = tokio::spawn(async move {
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming_shutdown(
                    TcpListenerStream::new(listener),
                    stop.cancelled_owned(),
                )
                .await
                .unwrap();
        });
        Self {
            address,
            desk,
            server,
        }
    }

    pub(crate) fn say(&self, orders: Assignments) {
        self.desk.orders.send_replace(orders);
    }

    /// The last report.
    pub(crate) fn last(&self) -> Option<WorkerReport> {
        self.desk.last.lock().clone()
    }

    /// How many reports came.
    pub(crate) fn heard(&self) -> usize {
        self.desk.heard.load(Ordering::SeqCst)
    }

    /// How many heartbeat streams are open.
    pub(crate) fn open(&self) -> usize {
        self.desk.open.load(Ordering::SeqCst)
    }

    /// The state of a replica as it was last reported.
    pub(crate) fn state(&self, model: &str, version: u32) -> Option<ReplicaState> {
        let report = self.last()?;
        let mut replicas = report.replicas.into_iter();
        let replica = replicas.find(|replica| {
            replica.model.as_str() == model && replica.version == ModelVersion(version)
        });
        replica.map(|replica| replica.state)
    }

    /// Waits until a replica is reported as ready.
    pub(crate) async fn ready(&self, model: &str, version: u32) {
        let ready = || (self.state(model, version)? == ReplicaState::Ready).then_some(());
        eventually(&format!("{model}:{version} is ready"), ready).await;
    }

    /// Ends every stream and stops listening.
    pub(crate) async fn stop(self) {
        self.desk.stop.cancel();
        self.server.await.unwrap();
    }
}

struct DeskService(Arc<Desk>);

struct Open(Arc<Desk>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tonic::async_trait]
impl WorkerService for DeskService {
    type HeartbeatStream = Pin<Box<dyn Stream<Item = Result<wire::Assignments, Status>> + Send>>;

    async fn heartbeat(
        &self,
        request: Request<Streaming<wire::WorkerReport>>,
    ) -> Result<Response<Self::HeartbeatStream>, Status> {
        let desk = self.0.clone();
        desk.open.fetch_add(1, Ordering::SeqCst);
        let open = Open(desk.clone());
        let mut reports = request.into_inner();
        let mut orders = desk.orders.subscribe();
        orders.mark_changed();
        let answers = stream! {
            let _open = open;
            let mut heard = None;
            loop {
                tokio::select! {
                    report = reports.next() => {
                        let Some(Ok(report)) = report else { break };
                        let report = changes_from_wire(heard.take(), report).unwrap();
                        heard = Some(report.clone());
                        *desk.last.lock() = Some(report);
                        desk.heard.fetch_add(1, Ordering::SeqCst);
                    }
                    changed = orders.changed() => {
                        changed.unwrap();
                        let now = orders.borrow_and_update().clone();
                        yield Ok(orders_to_wire(&now));
                    }
                    () = desk.stop.cancelled() => break,
                }
            }
        };
        Ok(Response::new(Box::pin(answers)))
    }
}

/// Parameters from pairs.
pub(crate) fn parameters(pairs: &[(&str, &str)]) -> Parameters {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), ParamValue::Text((*value).to_owned())))
        .collect()
}

/// A version of a scripted model.
pub(crate) fn assignment(model: &str, version: u32, given: &[(&str, &str)]) -> Assignment {
    Assignment {
        model: ModelName::new(model).unwrap(),
        spec: ModelVersionSpec {
            version: ModelVersion(version),
            backend: BackendName::FAKE,
            source: ModelSource::None,
            parameters: parameters(given),
            description: String::new(),
            created_ms: 0,
        },
        connector: None,
    }
}

/// Orders with no word about other coordinators.
pub(crate) fn orders(revision: u64, assignments: &[Assignment]) -> Assignments {
    Assignments {
        revision: Revision(revision),
        assignments: assignments.to_vec(),
        coordinators: Vec::new(),
        overcommit: Default::default(),
    }
}

/// A request for one generation.
pub(crate) fn request(model: &str, given: &[(&str, &str)]) -> PredictRequest {
    let prompts: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
    let batch = RecordBatch::try_from_iter_with_nullable([("prompt", prompts, true)]).unwrap();
    let model = ModelRef::deployed(ModelName::new(model).unwrap());
    let mut request = PredictRequest::new(model, Input::Batch(batch));
    request.parameters = parameters(given);
    request
}

/// Reads a stream to its end: its texts, and the error that ended it.
pub(crate) async fn read(mut stream: ChunkStream) -> (Vec<String>, Option<PredictError>) {
    let mut texts = Vec::new();
    while let Some(batch) = stream.next().await {
        match batch {
            Ok(batch) => {
                let rows = GenerationRow::rows(&batch).unwrap();
                texts.extend(rows.filter_map(|row| row.text().map(str::to_owned)));
            }
            Err(error) => return (texts, Some(error)),
        }
    }
    (texts, None)
}

/// A stream that has given its first chunk and then goes silent: it holds its place.
pub(crate) async fn running(worker: &Worker, model: &str) -> ChunkStream {
    let stall = request(model, &[("stall_after", "1")]);
    let mut stream = worker.predict(stall).await.unwrap();
    stream.next().await.unwrap().unwrap();
    stream
}

/// A worker of scripted models with one coordinator.
pub(crate) struct Setting {
    pub(crate) coordinator: Coordinator,
    pub(crate) worker: Worker,
    pub(crate) tally: Arc<Tally>,
    pub(crate) metrics: Metrics,
}

impl Setting {
    /// Starts both; the assigned models are ready.
    pub(crate) async fn start(
        assigned: &[Assignment],
        adjust: impl FnOnce(&mut WorkerConfig),
    ) -> Self {
        let coordinator = Coordinator::start(orders(1, assigned)).await;
        let loader = FakeLoader::default();
        let tally = loader.tally();
        let mut config = config(&[&coordinator]);
        adjust(&mut config);
        let metrics = Metrics::new();
        let worker = Worker::start(config, vec![Arc::new(loader)], metrics.clone());
        for assignment in assigned {
            let version = assignment.spec.version.0;
            coordinator.ready(assignment.model.as_str(), version).await;
        }
        Self {
            coordinator,
            worker,
            tally,
            metrics,
        }
    }
}

/// A worker's configuration: heartbeats every 20 ms.
pub(crate) fn config(coordinators: &[&Coordinator]) -> WorkerConfig {
    let addresses = coordinators
        .iter()
        .map(|coordinator| coordinator.address.to_string());
    let id = WorkerId::new("w1").unwrap();
    let mut config = WorkerConfig::new(id, "127.0.0.1:9", addresses.collect());
    config.heartbeat_interval = Duration::from_millis(20);
    config
}

/// Fails the first load of each model as `load_first` says (`error` or `panic`), and the second
/// as `load_again` says (`error`), and else loads scripted models.
#[derive(Debug, Default)]
pub(crate) struct FlakyLoader {
    tried: Mutex<std::collections::BTreeMap<ModelName, usize>>,
    inner: FakeLoader,
}

#[async_trait]
impl BackendLoader for FlakyLoader {
    fn name(&self) -> BackendName {
        BackendName::FAKE
    }

    async fn estimate(&self, assignment: &Assignment) -> Result<u64, PredictError> {
        self.inner.estimate(assignment).await
    }

    async fn load(
        &self,
        assignment: &Assignment,
    ) -> Result<Arc<dyn volley_backend::Backend>, PredictError> {
        let before = {
            let mut tried = self.tried.lock();
            let count = tried.entry(assignment.model.clone()).or_insert(0);
            *count += 1;
            *count - 1
        };
        let asked = |name| assignment.spec.parameters.text(name);
        match (before, asked("load_first").as_deref(), asked("load_again")) {
            (0, Some("error"), _) => Err(PredictError::invalid("the model's file is missing")),
            (0, Some("panic"), _) => panic!("the loader has a defect"),
            (1, _, Some(_)) => Err(PredictError::invalid("the model's file is gone")),
            _ => self.inner.load(assignment).await,
        }
    }
}
