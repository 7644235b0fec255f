//! A cluster that follows a script.

#[path = "cluster/apply.rs"]
mod apply;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arrow_array::RecordBatch;
use async_trait::async_trait;
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use volley_types::chunk::{BatchResult, generation_schema};
use volley_types::control::{
    ClusterStatus, DrainStatus, Liveness, ModelStatus, ReplicaStatus, WorkerStatus,
};
use volley_types::registry::{
    BackendName, ConnectorSpec, CoordinatorMember, Deployment, ModelEntry, ModelSource, ModelState,
    ModelVersionSpec, RaftStatus, RegistryCommand, RegistryReply, RegistryState, ReplicaState,
};
use volley_types::scale::ScaleSignal;
use volley_types::signature::with_route;
use volley_types::{
    ChunkStream, ClusterView, ConnectorCheck, Deadline, Dialect, ErrorCode, GenerationChunk,
    GenerationChunks, GpuReport, Incarnation, Input, Membership, ModelName, ModelRef, ModelVersion,
    NodeId, Parameters, Predict, PredictError, PredictRequest, Priority, Registry, RequestId,
    Revision, Signature, TenantId, TraceContext, WorkerId,
};

type Answer = Box<dyn Fn(RecordBatch) -> Result<RecordBatch, PredictError> + Send + Sync>;

/// Behaviour of a model when it is called.
pub(crate) enum Script {
    /// Streams these chunks, one batch each.
    Chunks(Vec<GenerationChunk>),
    /// Streams what the test sends.
    Channel(Mutex<Option<mpsc::Receiver<BatchResult>>>),
    /// Rejects the request immediately.
    Refuses(PredictError),
    /// Accepts, then fails before the first chunk.
    Fails(PredictError),
    /// A tensor model.
    Tensors(Signature, Answer),
    /// Returns each batch immediately as it is.
    Echo(Signature),
    /// Reads no rows and returns none.
    Deaf(Signature),
    /// Panics.
    Panics,
}

/// The request of a call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) model: ModelRef,
    pub(crate) request_id: RequestId,
    pub(crate) trace: TraceContext,
    pub(crate) remaining: Duration,
    pub(crate) parameters: Parameters,
    pub(crate) priority: Priority,
    pub(crate) rows: RecordBatch,
    pub(crate) tenant: TenantId,
    pub(crate) affinity: Option<u64>,
    pub(crate) dialect: Dialect,
    pub(crate) whole: bool,
}

#[derive(Default)]
pub(crate) struct Cluster {
    registry: Mutex<Arc<RegistryState>>,
    scripts: Mutex<HashMap<String, Arc<Script>>>,
    pub(crate) calls: Mutex<Vec<Call>>,
    pub(crate) open: Arc<AtomicUsize>,
    pub(crate) replica_state: Mutex<Option<ReplicaState>>,
    pub(crate) draining: std::sync::atomic::AtomicBool,
    pub(crate) write_refusal: Mutex<Option<PredictError>>,
    /// Result of the workers' check of connectors; `None` if no worker is available.
    pub(crate) connector_check: Mutex<Option<Result<(), PredictError>>>,
    /// The checked connectors: their models, and whether their servers were called.
    pub(crate) connectors_checked: Mutex<Vec<(String, bool)>>,
}

struct OpenStream(Arc<AtomicUsize>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Cluster {
    pub(crate) fn script(&self, model: &str, script: Script) {
        let mut registry = RegistryState::clone(&self.registry.lock());
        let name = ModelName::new(model).unwrap();
        registry.revision.0 += 1;
        let entry = entry(&name, registry.revision);
        registry.models.insert(name, Arc::new(entry));
        *self.registry.lock() = Arc::new(registry);
        self.scripts
            .lock()
            .insert(model.to_owned(), Arc::new(script));
    }

    /// A model whose stream the test feeds.
    pub(crate) fn feed(&self, model: &str) -> mpsc::Sender<BatchResult> {
        let (sender, receiver) = mpsc::channel(64);
        self.script(model, Script::Channel(Mutex::new(Some(receiver))));
        sender
    }

    pub(crate) fn last_call(&self) -> Call {
        self.calls
            .lock()
            .last()
            .expect("the model was called")
            .clone()
    }

    fn stream(
        &self,
        batches: impl futures::Stream<Item = BatchResult> + Send + 'static,
    ) -> ChunkStream {
        self.open.fetch_add(1, Ordering::SeqCst);
        ChunkStream::new(generation_schema(), batches).holding(OpenStream(self.open.clone()))
    }
}

fn entry(name: &ModelName, revision: Revision) -> ModelEntry {
    let version = ModelVersion(1);
    let spec = ModelVersionSpec {
        version,
        backend: BackendName::TEXT,
        source: ModelSource::None,
        parameters: Parameters::default(),
        description: "scripted".to_owned(),
        created_ms: 1,
    };
    ModelEntry {
        name: name.clone(),
        versions: BTreeMap::from([(version, spec)]),
        deployment: Some(Deployment::new(version, 1, revision)),
        placement: vec![WorkerId::new("w1").unwrap()],
        ever_deployed: true,
        group: None,
        deleted_tasks: BTreeSet::new(),
    }
}

fn missing(model: &ModelName) -> PredictError {
    PredictError::new(ErrorCode::NotFound, format!("no model '{model}' exists"))
}

#[async_trait]
impl Predict for Cluster {
    async fn predict(&self, request: PredictRequest) -> Result<ChunkStream, PredictError> {
        let script = self
            .scripts
            .lock()
            .get(request.model.name.as_str())
            .cloned();
        let script = script.ok_or_else(|| missing(&request.model.name))?;
        let rows = match (request.input.into_inner(), &*script) {
            (input, Script::Echo(signature)) => {
                self.open.fetch_add(1, Ordering::SeqCst);
                let echo = ChunkStream::new(signature.output.clone(), input.into_stream());
                return Ok(echo.holding(OpenStream(self.open.clone())));
            }
            (input, Script::Deaf(signature)) => {
                self.open.fetch_add(1, Ordering::SeqCst);
                let never = futures::stream::pending();
                let rows = input.into_stream();
                let deaf = ChunkStream::new(signature.output.clone(), never).holding(rows);
                return Ok(deaf.holding(OpenStream(self.open.clone())));
            }
            (Input::Batch(rows), _) => rows,
            (Input::Stream { mut batches, .. }, _) => batches.next().await.expect("rows")?,
        };
        let deadline = request.deadline.expect("the edge sets a deadline");
        self.calls.lock().push(Call {
            model: request.model,
            request_id: request.request_id,
            trace: request.trace,
            remaining: deadline.remaining(std::time::Instant::now()),
            parameters: request.parameters,
            priority: request.priority,
            rows: rows.clone(),
            tenant: request.tenant,
            affinity: request.affinity,
            dialect: request.dialect,
            whole: request.whole,
        });
        match &*script {
            Script::Chunks(chunks) => {
                let batches: Vec<_> = chunks
                    .iter()
                    .map(|chunk| Ok(GenerationChunks::single(chunk)))
                    .collect();
                Ok(self.stream(futures::stream::iter(batches)))
            }
            Script::Channel(receiver) => {
                let receiver = receiver.lock().take().expect("a fed stream is opened once");
                Ok(self.stream(until(deadline, tokio_stream(receiver))))
            }
            Script::Refuses(error) => Err(error.clone()),
            Script::Fails(error) => {
                let error = error.clone();
                Ok(self.stream(futures::stream::once(async { Err(error) })))
            }
            Script::Tensors(signature, answer) => {
                let answer = answer(rows);
                let stream = futures::stream::once(async { answer });
                Ok(ChunkStream::new(signature.output.clone(), stream))
            }
            Script::Echo(_) | Script::Deaf(_) => unreachable!("they were answered"),
            Script::Panics => panic!("a defect with a secret"),
        }
    }

    async fn signature(&self, model: &ModelRef) -> Result<Signature, PredictError> {
        apply::registered(&self.state(), model)?;
        match self
            .scripts
            .lock()
            .get(model.name.as_str())
            .map(Arc::as_ref)
        {
            Some(
                Script::Tensors(signature, _) | Script::Echo(signature) | Script::Deaf(signature),
            ) => Ok(signature.clone()),
            Some(Script::Channel(_)) => with_route(Signature::generation(), "/own"),
            Some(_) => Ok(Signature::generation()),
            None if self.registry.lock().models.contains_key(&model.name) => Err(
                PredictError::new(ErrorCode::NotDeployed, "the model is not deployed"),
            ),
            None => Err(missing(&model.name)),
        }
    }

    async fn models(&self) -> Vec<ModelName> {
        self.registry.lock().models.keys().cloned().collect()
    }
}

fn tokio_stream(
    receiver: mpsc::Receiver<BatchResult>,
) -> impl futures::Stream<Item = BatchResult> + Send {
    futures::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|item| (item, receiver))
    })
    .fuse()
}

/// `batches`, which end with an error at the deadline, like those of a coordinator.
fn until(
    deadline: Deadline,
    batches: impl futures::Stream<Item = BatchResult> + Send + 'static,
) -> impl futures::Stream<Item = BatchResult> + Send {
    let late = PredictError::new(
        ErrorCode::DeadlineExceeded,
        "the request did not end in time",
    );
    let expiry = tokio::time::sleep_until(deadline.instant().into());
    let expiry = expiry.map(move |()| Err(late)).into_stream();
    let mut ended = false;
    futures::stream::select(
        batches.map(Some).chain(futures::stream::iter([None])),
        expiry.map(Some),
    )
    .take_while(move |item| {
        let goes_on = !ended && item.is_some();
        ended |= matches!(item, Some(Err(_)));
        futures::future::ready(goes_on)
    })
    .filter_map(futures::future::ready)
}

#[async_trait]
impl Registry for Cluster {
    fn state(&self) -> Arc<RegistryState> {
        self.registry.lock().clone()
    }

    async fn write(&self, command: RegistryCommand) -> Result<RegistryReply, PredictError> {
        if let Some(error) = self.write_refusal.lock().clone() {
            return Err(error);
        }
        let mut guard = self.registry.lock();
        let mut registry = RegistryState::clone(&guard);
        registry.revision.0 += 1;
        let version = apply::apply(&mut registry, command)?;
        let revision = registry.revision;
        *guard = Arc::new(registry);
        Ok(RegistryReply { revision, version })
    }

    async fn check_connector(
        &self,
        connector: &ConnectorSpec,
        test: bool,
    ) -> Result<Vec<ConnectorCheck>, PredictError> {
        let asked = (connector.model.clone(), test);
        self.connectors_checked.lock().push(asked);
        let outcome = self.connector_check.lock().clone();
        let checked = outcome.map(|outcome| ConnectorCheck {
            worker: WorkerId::new("w1").unwrap(),
            outcome,
        });
        Ok(checked.into_iter().collect())
    }
}

impl ClusterView for Cluster {
    fn model_status(&self, model: &ModelName) -> Option<ModelStatus> {
        let registry = self.state();
        let entry = registry.models.get(model)?;
        let state = self
            .replica_state
            .lock()
            .clone()
            .unwrap_or(ReplicaState::Ready);
        let Some(deployment) = &entry.deployment else {
            let state = if entry.ever_deployed {
                ModelState::Undeployed
            } else {
                ModelState::Registered
            };
            return Some(ModelStatus {
                state,
                desired_replicas: 0,
                version: None,
                replicas: vec![],
                serving: vec![],
                unplaced: None,
            });
        };
        let shown = match &state {
            ReplicaState::Ready => ModelState::Deployed,
            ReplicaState::Failed(_) => ModelState::DeployFailed,
            ReplicaState::Loading | ReplicaState::Draining => ModelState::Deploying,
        };
        Some(ModelStatus {
            state: shown,
            desired_replicas: deployment.replicas,
            version: Some(deployment.version),
            serving: match (&state, &deployment.rollout) {
                (ReplicaState::Ready, _) => vec![deployment.version],
                // The replaced version answers until the deployed one does.
                (_, Some(rollout)) => vec![rollout.from],
                _ => vec![],
            },
            replicas: vec![replica(model, deployment.version, state)],
            unplaced: None,
        })
    }

    fn status(&self) -> ClusterStatus {
        let model = ModelName::new("m").unwrap();
        ClusterStatus {
            scale: ScaleSignal {
                workers: 1,
                desired_workers: 3,
                ..ScaleSignal::default()
            },
            raft: RaftStatus {
                id: NodeId(1),
                role: "leader",
                leader: Some(NodeId(1)),
                term: 3,
                last_log_index: Some(9),
                last_applied: Some(9),
                members: members(),
            },
            workers: vec![WorkerStatus {
                id: WorkerId::new("w1").unwrap(),
                incarnation: Incarnation(7),
                address: "127.0.0.1:7000".to_owned(),
                liveness: Liveness::Alive,
                last_heard: Duration::from_millis(120),
                replicas: vec![replica(&model, ModelVersion(1), ReplicaState::Ready)],
                memory_bytes: 1 << 20,
                memory_budget_bytes: 1 << 30,
                gpus: vec![GpuReport {
                    index: 0,
                    name: "GPU".to_owned(),
                    used_bytes: 1 << 30,
                    total_bytes: 4 << 30,
                    utilization_percent: 50,
                }],
            }],
            active_streams: u32::try_from(self.open.load(Ordering::SeqCst)).unwrap(),
            reports: BTreeMap::new(),
            level: 1,
            drains: drains(&self.state()),
        }
    }

    fn ready(&self) -> bool {
        !self.draining.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Membership for Cluster {
    async fn join(
        &self,
        node: NodeId,
        address: String,
    ) -> Result<Vec<CoordinatorMember>, PredictError> {
        let mut members = members();
        members.push(CoordinatorMember {
            id: node,
            address,
            voter: true,
        });
        Ok(members)
    }

    async fn leave(&self, node: NodeId) -> Result<Vec<CoordinatorMember>, PredictError> {
        if node == NodeId(1) {
            return Err(PredictError::new(
                ErrorCode::Conflict,
                "node 1 is the last voter",
            ));
        }
        Ok(members())
    }

    async fn replace(
        &self,
        old: NodeId,
        node: NodeId,
        address: String,
    ) -> Result<Vec<CoordinatorMember>, PredictError> {
        if old != NodeId(1) {
            return Err(PredictError::new(
                ErrorCode::NotFound,
                "no such coordinator",
            ));
        }
        let voter = true;
        Ok(vec![CoordinatorMember {
            id: node,
            address,
            voter,
        }])
    }

    async fn transfer_leadership(&self, to: Option<NodeId>) -> Result<NodeId, PredictError> {
        Ok(to.unwrap_or(NodeId(1)))
    }

    async fn backup(&self) -> Result<Vec<u8>, PredictError> {
        Ok(b"volley-backup 1\n".to_vec())
    }
}

/// The drains in the registry, without any progress.
fn drains(registry: &RegistryState) -> Vec<DrainStatus> {
    let drains = registry.drains.iter();
    drains
        .map(|(node, drain)| DrainStatus {
            node: node.clone(),
            force: drain.force,
            done: false,
            models: vec![ModelName::new("m").unwrap()],
            blocked: BTreeMap::new(),
            active: 2,
        })
        .collect()
}

fn members() -> Vec<CoordinatorMember> {
    vec![CoordinatorMember {
        id: NodeId(1),
        address: "127.0.0.1:7100".to_owned(),
        voter: true,
    }]
}

fn replica(model: &ModelName, version: ModelVersion, state: ReplicaState) -> ReplicaStatus {
    ReplicaStatus {
        worker: WorkerId::new("w1").unwrap(),
        model: model.clone(),
        version,
        state,
        active: 1,
        queued: 0,
        capacity: 8,
        evicted: false,
        memory_bytes: 1 << 10,
        fetch: None,
    }
}
