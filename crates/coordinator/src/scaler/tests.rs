//! Models that go down to nothing and come back while requests go on: over a real registry, the
//! planner, and a worker of this test whose reports are late.

mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use futures::StreamExt;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use volley_cluster::{Cluster, ClusterConfig};
use volley_telemetry::Metrics;
use volley_types::registry::{
    BackendName, DeployOptions, ModelSource, ModelVersionSpec, PipelineSpec, PipelineStep,
    RegistryCommand, Scaling, StepKind,
};
use volley_types::{
    Deadline, ErrorCode, Input, ModelName, ModelRef, ModelVersion, NodeId, Parameters, Predict,
    PredictError, PredictRequest, Task,
};

use self::worker::TestWorker;
use crate::{Coordinator, CoordinatorConfig};

const PATIENCE: Duration = Duration::from_secs(60);

fn name(name: &str) -> ModelName {
    ModelName::new(name).unwrap()
}

async fn until(what: &str, met: impl Fn() -> bool) {
    let by = Instant::now() + PATIENCE;
    while !met() {
        assert!(Instant::now() < by, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn request(model: &str) -> PredictRequest {
    let prompts: ArrayRef = Arc::new(StringArray::from(vec!["x"]));
    let rows = RecordBatch::try_from_iter_with_nullable([("prompt", prompts, true)]).unwrap();
    PredictRequest::new(ModelRef::deployed(name(model)), Input::Batch(rows))
}

/// One coordinator that leads, and one worker.
struct Stage {
    coordinator: Coordinator,
    worker: TestWorker,
    _folder: TempDir,
}

impl Stage {
    async fn new() -> Self {
        Self::with(CoordinatorConfig::default()).await
    }

    async fn with(config: CoordinatorConfig) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Nobody else is there to be reached.
        let address = "127.0.0.1:1".to_owned();
        let cluster = ClusterConfig::new(NodeId(1), folder.path(), address.clone());
        let cluster = Cluster::start(cluster).await.unwrap();
        let members = BTreeMap::from([(NodeId(1), address)]);
        cluster.bootstrap(members).await.unwrap();
        until("a leader", || cluster.is_leader()).await;
        let worker = TestWorker::default();
        let client: Arc<dyn Predict> = Arc::new(worker.clone());
        let connect = Arc::new(move |_: &str| client.clone());
        let coordinator = Coordinator::start(config, cluster, connect, Metrics::new());
        coordinator.spawn(worker.clone().run(coordinator.clone()));
        Self {
            coordinator,
            worker,
            _folder: folder,
        }
    }

    async fn write(&self, command: RegistryCommand) {
        self.coordinator.0.cluster.write(command).await.unwrap();
    }

    /// A fake model that may go down to nothing; by itself it does not.
    async fn deploy(&self, model: &str) {
        let spec = ModelVersionSpec {
            version: ModelVersion(0),
            backend: BackendName::FAKE,
            source: ModelSource::None,
            parameters: Parameters::default(),
            description: String::new(),
            created_ms: 0,
        };
        let register = RegistryCommand::RegisterModel(name(model), spec);
        self.write(register).await;
        let scaling = Scaling {
            min_replicas: 0,
            idle_ms: u32::MAX,
            ..Scaling::default()
        };
        let deploy = RegistryCommand::Deploy {
            model: name(model),
            version: None,
            replicas: 1,
            overcommit: false,
            workers: Vec::new(),
            options: DeployOptions {
                scaling: Some(scaling),
                ..DeployOptions::default()
            },
        };
        self.write(deploy).await;
        until("it is deployed", || self.is_ready(model)).await;
    }

    /// As the leader does with a model that is idle.
    async fn send_to_sleep(&self, model: &str) {
        let registry = self.coordinator.0.cluster.registry().borrow().clone();
        let deployment = registry.models[&name(model)].deployment.as_ref().unwrap();
        let scale = RegistryCommand::Scale {
            model: name(model),
            deployment: deployment.revision,
            replicas: 0,
        };
        self.write(scale).await;
    }

    fn replicas(&self, model: &str) -> u32 {
        let registry = self.coordinator.0.cluster.registry().borrow().clone();
        let deployment = registry.models[&name(model)].deployment.as_ref();
        deployment.map_or(0, |deployment| deployment.replicas)
    }

    /// As far as the coordinator knows.
    fn is_ready(&self, model: &str) -> bool {
        let live = self.coordinator.0.live.read();
        !live.ready_versions(&name(model)).is_empty()
    }

    fn ask(&self, request: PredictRequest) -> JoinHandle<Result<usize, PredictError>> {
        tokio::spawn(answered(self.coordinator.clone(), request))
    }
}

/// How many rows an answer has.
async fn answered(
    coordinator: Coordinator,
    request: PredictRequest,
) -> Result<usize, PredictError> {
    let mut answer = coordinator.predict(request).await?;
    let mut rows = 0;
    while let Some(batch) = answer.next().await {
        rows += batch?.num_rows();
    }
    Ok(rows)
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_a_model_goes_to_nothing_and_comes_back_again_and_again() {
    const ROUNDS: usize = 12;
    let stage = Stage::new().await;
    stage.deploy("sleeper").await;
    let count = Arc::new(AtomicUsize::new(0));
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let (coordinator, count) = (stage.coordinator.clone(), count.clone());
            tokio::spawn(async move {
                loop {
                    let told = answered(coordinator.clone(), request("sleeper")).await;
                    assert!(0 < told.expect("no request fails"));
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let failed = || callers.iter().any(JoinHandle::is_finished);
    for _ in 0..ROUNDS {
        let goal = count.load(Ordering::Relaxed) + 20;
        let awake = || stage.replicas("sleeper") == 1 && goal <= count.load(Ordering::Relaxed);
        until("it answers", || awake() || failed()).await;
        // Nobody asks for it back before it has gone.
        let nobody_asks = stage.coordinator.0.activation_request.lock().await;
        stage.send_to_sleep("sleeper").await;
        let gone = || !stage.worker.has(&name("sleeper"));
        until("it is gone", || gone() || failed()).await;
        drop(nobody_asks);
    }
    let goal = count.load(Ordering::Relaxed) + 20;
    let answers = || goal <= count.load(Ordering::Relaxed);
    until("it comes back at the end", || answers() || failed()).await;
    for caller in callers {
        if caller.is_finished() {
            caller.await.unwrap();
        } else {
            caller.abort();
        }
    }
    let refused = stage.worker.refused();
    assert!(ROUNDS / 2 < refused, "requests met the gap: {refused}");
    stage.coordinator.shutdown().await;
}

/// Its last replica is there still, and is wanted again.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_comes_before_the_last_replica_has_gone_asks_for_one() {
    let stage = Stage::new().await;
    stage.deploy("sleeper").await;
    stage.worker.deafen();
    stage.send_to_sleep("sleeper").await;
    assert_eq!(stage.replicas("sleeper"), 0);
    assert!(0 < stage.ask(request("sleeper")).await.unwrap().unwrap());
    until("one is wanted", || stage.replicas("sleeper") == 1).await;
    assert_eq!(stage.worker.refused(), 0);
    stage.coordinator.shutdown().await;
}

/// As on a coordinator whose registry lags: that has the replica still.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_refuses_is_believed_before_it_reports_and_the_request_waits() {
    let stage = Stage::new().await;
    stage.deploy("sleeper").await;
    stage.worker.unload_all(true);
    let asked = [(); 3].map(|()| stage.ask(request("sleeper")));
    until("one was refused", || 0 < stage.worker.refused()).await;
    until("the others hear of it", || !stage.is_ready("sleeper")).await;
    assert_eq!(stage.replicas("sleeper"), 1);
    stage.worker.unload_all(false);
    for asked in asked {
        assert!(0 < asked.await.unwrap().expect("it waited"));
    }
    stage.coordinator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_a_model_beyond_the_requests_own_deadline_or_for_ever() {
    let config = CoordinatorConfig {
        activation_timeout: Duration::from_millis(700),
        ..CoordinatorConfig::default()
    };
    let stage = Stage::with(config).await;
    stage.deploy("sleeper").await;
    stage.worker.unload_all(true);
    let mut hurried = request("sleeper");
    hurried.deadline = Some(Deadline::after(Instant::now(), Duration::from_millis(300)));
    let (hurried, patient) = (stage.ask(hurried), stage.ask(request("sleeper")));
    let error = hurried.await.unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::DeadlineExceeded, "{error}");
    let error = patient.await.unwrap().unwrap_err();
    assert_eq!(error.code, ErrorCode::Unavailable, "{error}");
    assert!(error.retry_after.is_some(), "{error}");
    stage.coordinator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_whose_model_was_scaled_to_zero_during_the_steps_before_activates_it() {
    let stage = Stage::new().await;
    stage.deploy("first").await;
    stage.deploy("second").await;
    let step = |own: &str, model: &str, column: &str| PipelineStep {
        name: own.to_owned(),
        over: None,
        kind: StepKind::Model {
            model: ModelRef::deployed(name(model)),
            inputs: BTreeMap::from([("prompt".to_owned(), column.parse().unwrap())]),
            parameters: Parameters::default(),
        },
    };
    let pipeline = PipelineSpec {
        name: name("both"),
        task: Task::Generate,
        inputs: BTreeMap::new(),
        steps: vec![
            step("one", "first", "request.question"),
            step("two", "second", "one.text"),
        ],
        output: "two".to_owned(),
        description: String::new(),
        ensemble: None,
    };
    let put = RegistryCommand::PutPipeline {
        pipeline: Arc::new(pipeline),
        expected: None,
    };
    stage.write(put).await;

    stage.worker.hold_back(Some(name("first")));
    let asked = stage.ask(request("both"));
    until("the first step runs", || 0 < stage.worker.held_back()).await;
    stage.send_to_sleep("second").await;
    until("the second model is gone", || {
        !stage.is_ready("second") && !stage.worker.has(&name("second"))
    })
    .await;
    stage.worker.hold_back(None);
    assert!(0 < asked.await.unwrap().expect("the step activates its model"));
    assert_eq!(stage.replicas("second"), 1);
    stage.coordinator.shutdown().await;
}
