//! The simulated network between coordinators. It carries whole gRPC requests and replies, delays,
//! loses, duplicates or rejects them, or holds them back at a cut link.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http_body_util::{BodyExt, Full};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Request, Response, request};
use tonic::codegen::{Bytes, Service};
use tonic::{ConnectError, Status, TimeoutExpired};
use tower::util::BoxCloneSyncService;
use volley_proto::raft::v1::membership_service_server::MembershipServiceServer;
use volley_proto::raft::v1::raft_service_server::RaftServiceServer;
use volley_sim_kit::network::{Links, NetworkConditions};
use volley_sim_kit::process::Life;
use volley_sim_kit::trace::Trace;

use crate::lines::{Line, Lines};
use crate::service::{MembershipEndpoint, RaftEndpoint};

/// Time without a sign of life after which a connection and all calls on it fail.
const KEEPALIVE: Duration = Duration::from_secs(15);
const CONNECT: Duration = Duration::from_secs(2);
const CONSENSUS: &str = "/volley.raft.v1.RaftService/";

type Answer = Result<Response<Body>, Status>;

/// All links. Clones share them.
#[derive(Clone)]
pub(super) struct Net(Arc<NetInner>);

struct NetInner {
    seed: u64,
    began: Instant,
    state: Mutex<State>,
    /// Notifies when a link is restored.
    mended: Notify,
    trace: Trace,
}

struct State {
    weather: NetworkConditions,
    links: Links<u64>,
    servers: BTreeMap<String, Server>,
}

#[derive(Clone)]
struct Server {
    life: Life,
    raft: RaftServiceServer<RaftEndpoint>,
    membership: MembershipServiceServer<MembershipEndpoint>,
}

/// Random treatment of one message.
struct Fate {
    delay: Duration,
    lost: bool,
    /// At a cut link it waits, as TCP does; otherwise its connection is reset.
    waits: bool,
}

/// Returns the address of a node.
pub(super) fn address(node: u64) -> String {
    format!("n{node}:1")
}

fn node_at(address: &str) -> Option<u64> {
    address.strip_prefix('n')?.strip_suffix(":1")?.parse().ok()
}

impl Net {
    pub(super) fn new(seed: u64, trace: Trace) -> Self {
        let state = State {
            weather: NetworkConditions::CALM,
            links: Links::default(),
            servers: BTreeMap::new(),
        };
        Self(Arc::new(NetInner {
            seed,
            began: Instant::now(),
            state: Mutex::new(state),
            mended: Notify::new(),
            trace,
        }))
    }

    pub(super) fn set_conditions(&self, weather: NetworkConditions) {
        self.0.state.lock().weather = weather;
    }

    /// Cuts the link in one direction.
    pub(super) fn cut(&self, from: u64, to: u64) {
        self.0.state.lock().links.cut(from, to);
    }

    /// Restores the link in one direction.
    pub(super) fn join(&self, from: u64, to: u64) {
        self.0.state.lock().links.join(from, to);
        self.0.mended.notify_waiters();
    }

    /// Restores all links.
    pub(super) fn mend(&self) {
        self.0.state.lock().links.mend();
        self.0.mended.notify_waiters();
    }

    /// Registers the services of a node.
    pub(super) fn serve(&self, life: &Life, cluster: &crate::Cluster) {
        let (raft, membership) = cluster.services();
        let server = Server {
            life: life.clone(),
            raft,
            membership,
        };
        let mut state = self.0.state.lock();
        state.servers.insert(address(life.node()), server);
    }

    /// Removes all services.
    pub(super) fn close(&self) {
        // The services hold the network, and the network holds them.
        let servers = std::mem::take(&mut self.0.state.lock().servers);
        drop(servers);
    }

    /// Returns the connections that a life makes.
    pub(super) fn lines_of(&self, life: &Life) -> Arc<dyn Lines> {
        Arc::new(Way {
            net: self.clone(),
            from: life.clone(),
        })
    }

    fn server(&self, address: &str) -> Option<Server> {
        let server = self.0.state.lock().servers.get(address).cloned();
        server.filter(|server| !server.life.has_ended())
    }

    /// Returns the random numbers of one call. They depend on the call and its time only, so the
    /// order of calls in the same moment does not matter.
    fn dice(&self, from: u64, to: &str, what: &str, body: &[u8]) -> fastrand::Rng {
        let mut hasher = DefaultHasher::new();
        let at = self.0.began.elapsed().as_millis();
        (self.0.seed, at, from, to, what, body).hash(&mut hasher);
        fastrand::Rng::with_seed(hasher.finish())
    }

    fn fate(&self, dice: &mut fastrand::Rng) -> Fate {
        let weather = self.0.state.lock().weather;
        Fate {
            delay: Duration::from_millis(weather.delay_ms(dice)),
            lost: weather.loses(dice),
            waits: dice.u8(..3) != 0,
        }
    }

    fn comes_twice(&self, dice: &mut fastrand::Rng) -> bool {
        self.0.state.lock().weather.doubles(dice)
    }

    fn is_cut(&self, from: u64, to: u64) -> bool {
        self.0.state.lock().links.is_cut(from, to)
    }

    /// Carries one message.
    async fn transit(&self, from: u64, to: u64, dice: &mut fastrand::Rng) -> Result<(), Status> {
        let fate = self.fate(dice);
        sleep(fate.delay).await;
        if fate.lost {
            sleep(if fate.waits { KEEPALIVE } else { CONNECT }).await;
            return Err(reset());
        }
        let by = Instant::now() + KEEPALIVE;
        while self.is_cut(from, to) {
            let mended = self.0.mended.notified();
            if !fate.waits || tokio::time::timeout_at(by, mended).await.is_err() {
                return Err(reset());
            }
        }
        Ok(())
    }

    /// Carries one call, from the request to the reply. A sent request may arrive even if the
    /// caller does not wait for the reply.
    async fn carry(self, from: Life, to: String, request: Request<Body>) -> Answer {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let patience = grpc_timeout(&head.headers);
        // A caller that gives up may or may not cancel its request in time.
        let mut dice = self.dice(from.node(), &to, head.uri.path(), &body);
        let takes_back = dice.bool();
        let called = tokio::spawn(self.deliver((from, to), head, body, dice));
        let _guard = takes_back.then(|| EndOnDrop(called.abort_handle()));
        let answer = async { called.await.unwrap_or_else(|_| Err(reset())) };
        match patience {
            Some(patience) => timeout(patience, answer)
                .await
                .unwrap_or_else(|_| Err(Status::from_error(TimeoutExpired(()).into()))),
            None => answer.await,
        }
    }

    async fn deliver(
        self,
        (from, to): (Life, String),
        head: request::Parts,
        body: Bytes,
        mut dice: fastrand::Rng,
    ) -> Answer {
        let path = head.uri.path().to_owned();
        let target = node_at(&to).ok_or_else(reset)?;
        while from.is_frozen() {
            sleep(Duration::from_millis(10)).await;
        }
        if from.has_ended() {
            return Err(reset());
        }
        self.transit(from.node(), target, &mut dice).await?;
        let Some(server) = self.server(&to) else {
            self.log(&from, target, &path, "refused");
            let error = ConnectError("nobody listens there".into());
            return Err(Status::from_error(error.into()));
        };
        if path.starts_with(CONSENSUS) && self.comes_twice(&mut dice) {
            let (again, request) = (server.clone(), again(&head, &body));
            let later = self.fate(&mut dice).delay * 4;
            let net = self.clone();
            let (from, path) = (from.clone(), path.clone());
            tokio::spawn(async move {
                sleep(later).await;
                net.log(&from, target, &path, "again");
                drop(again.answer(request).await);
            });
        }
        self.log(&from, target, &path, "arrived");
        let answer = server.answer(again(&head, &body)).await?;
        self.transit(target, from.node(), &mut dice).await?;
        self.log(&from, target, &path, "answered");
        Ok(answer)
    }

    fn log(&self, from: &Life, to: u64, path: &str, what: &str) {
        let method = path.rsplit('/').next().unwrap_or_default();
        self.0
            .trace
            .line(format_args!("{} > {to} {method} {what}", from.node()));
    }
}

impl Server {
    async fn answer(mut self, request: Request<Body>) -> Answer {
        let answered = if request.uri().path().starts_with(CONSENSUS) {
            self.raft.call(request)
        } else {
            self.membership.call(request)
        };
        let answered = self.life.spawn(answered).await.map_err(|_| reset())?;
        answered.map_err(|never| match never {})
    }
}

/// The connection was lost, so the outcome of the call is unknown.
fn reset() -> Status {
    Status::unavailable("the connection was reset")
}

fn again(head: &request::Parts, body: &Bytes) -> Request<Body> {
    Request::from_parts(head.clone(), Body::new(Full::new(body.clone())))
}

/// Reads the timeout of a request in gRPC notation: a number and its unit.
fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = number.parse().ok()?;
    Some(match unit {
        "n" => Duration::from_nanos(number),
        "u" => Duration::from_micros(number),
        "m" => Duration::from_millis(number),
        "S" => Duration::from_secs(number),
        _ => return None,
    })
}

struct EndOnDrop(AbortHandle);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Connections of one life.
struct Way {
    net: Net,
    from: Life,
}

impl fmt::Debug for Way {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the lines of {}", self.from.node())
    }
}

impl Lines for Way {
    fn lazy(&self, address: &str) -> Result<Line, tonic::transport::Error> {
        Ok(BoxCloneSyncService::new(SimChannel {
            net: self.net.clone(),
            from: self.from.clone(),
            to: address.to_owned(),
        }))
    }

    fn connect<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Option<Line>> {
        let connect = async move {
            let (from, to) = (self.from.node(), node_at(address)?);
            let mut dice = self.net.dice(from, address, "connect", &[]);
            self.net.transit(from, to, &mut dice).await.ok()?;
            self.net.server(address)?;
            self.net.transit(to, from, &mut dice).await.ok()?;
            self.lazy(address).ok()
        };
        timeout(CONNECT, connect)
            .map(|connected| connected.ok().flatten())
            .boxed()
    }
}

#[derive(Clone)]
struct SimChannel {
    net: Net,
    from: Life,
    to: String,
}

impl Service<Request<Body>> for SimChannel {
    type Response = Response<Body>;
    type Error = Status;
    type Future = BoxFuture<'static, Answer>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let net = self.net.clone();
        net.carry(self.from.clone(), self.to.clone(), request)
            .boxed()
    }
}
