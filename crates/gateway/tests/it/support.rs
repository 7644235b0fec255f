//! A server on a free port with a scripted cluster, a small client, and shared helpers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use volley_flight::ingress::Decoder;
use volley_gateway::{
    ApiConfig, ApiServer, LocalStreams, ModelStore, Origins, PeerStreams, Streams,
};
use volley_security::{Authenticator, ReadRegistry};
use volley_types::registry::{BackendInfo, BackendList, BackendName, SourceKind};
use volley_types::{ClusterHandle, GenerationChunk, Registry};

use crate::cluster::Cluster;
pub(crate) use crate::cluster::Script;

/// Time limit for events that must happen.
pub(crate) const SOON: Duration = Duration::from_secs(60);

const fn backend(name: BackendName, source: SourceKind) -> BackendInfo {
    BackendInfo {
        name,
        summary: "is scripted",
        source,
        takes_model_config: matches!(source, SourceKind::Files),
    }
}

/// Backends that models may be registered for.
static BACKENDS: [BackendInfo; 4] = [
    backend(BackendName::ONNX, SourceKind::Files),
    backend(BackendName::REMOTE, SourceKind::Connector),
    backend(BackendName::TEXT, SourceKind::None),
    backend(BackendName::FAKE, SourceKind::None),
];

/// A running edge over a scripted cluster.
pub(crate) struct Edge {
    pub(crate) address: SocketAddr,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) shutdown: CancellationToken,
    pub(crate) server: JoinHandle<()>,
    pub(crate) api: ApiServer,
}

impl Drop for Edge {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Edge {
    pub(crate) async fn start() -> Self {
        Self::with(ApiConfig::default()).await
    }

    pub(crate) async fn with(config: ApiConfig) -> Self {
        Self::guarded(config, |_| Authenticator::open()).await
    }

    /// With authentication against the registry of the scripted cluster.
    pub(crate) async fn guarded(
        config: ApiConfig,
        gate: impl FnOnce(ReadRegistry) -> Authenticator,
    ) -> Self {
        Self::serving(config, gate, |server| server).await
    }

    /// With the resumable streams `streams`, and access to those of other edges.
    pub(crate) async fn holding(config: ApiConfig, streams: Streams, peers: PeerStreams) -> Self {
        let finish = |server: ApiServer| server.with_streams(streams, peers);
        Self::serving(config, |_| Authenticator::open(), finish).await
    }

    /// With stored responses, and access to those of other edges.
    pub(crate) async fn holding_responses(held: LocalStreams, peers: PeerStreams) -> Self {
        let finish = |server: ApiServer| {
            let server = server.with_streams(held.streams, peers);
            server.with_responses(held.responses)
        };
        Self::serving(ApiConfig::default(), |_| Authenticator::open(), finish).await
    }

    /// With permitted origins of web pages.
    pub(crate) async fn allowing(origins: Origins) -> Self {
        let finish = |server: ApiServer| server.with_origins(origins);
        Self::serving(ApiConfig::default(), |_| Authenticator::open(), finish).await
    }

    /// With a store for the files of models.
    pub(crate) async fn keeping(models: Arc<dyn ModelStore>) -> Self {
        let finish = |server: ApiServer| server.with_models(Some(models));
        Self::serving(ApiConfig::default(), |_| Authenticator::open(), finish).await
    }

    async fn serving(
        config: ApiConfig,
        gate: impl FnOnce(ReadRegistry) -> Authenticator,
        finish: impl FnOnce(ApiServer) -> ApiServer,
    ) -> Self {
        let cluster = Arc::new(Cluster::default());
        let read = cluster.clone();
        let gate = Arc::new(gate(Arc::new(move || read.state())));
        let metrics = Arc::new(|| "# EOF\n".to_owned());
        let api = ApiServer::new(ClusterHandle::new(cluster.clone()), metrics, config, gate)
            .with_backends(BackendList::new(&BACKENDS))
            .with_arrow(Arc::new(|| Box::new(Decoder::default())));
        let api = finish(api);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let server = tokio::spawn(api.clone().serve(listener, shutdown.clone()));
        Self {
            address,
            cluster,
            shutdown,
            server,
            api,
        }
    }

    /// Sends a request on a new connection. The body of the response is not read yet.
    pub(crate) async fn open(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        open(self.address, request).await
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Reply {
        ask(self.address, request).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(request(Method::GET, path, "")).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Reply {
        self.send(request(Method::DELETE, path, "")).await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Reply {
        self.send(request(Method::POST, path, body)).await
    }
}

async fn open(address: SocketAddr, request: Request<Full<Bytes>>) -> Response<Incoming> {
    let socket = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket))
        .await
        .unwrap();
    tokio::spawn(connection);
    tokio::time::timeout(SOON, sender.send_request(request))
        .await
        .unwrap()
        .unwrap()
}

/// Sends a request and reads the complete response.
pub(crate) async fn ask(address: SocketAddr, request: Request<Full<Bytes>>) -> Reply {
    let (parts, body) = open(address, request).await.into_parts();
    let body = tokio::time::timeout(SOON, body.collect())
        .await
        .unwrap()
        .unwrap()
        .to_bytes();
    Reply {
        status: parts.status,
        headers: parts.headers,
        body,
    }
}

pub(crate) fn request(method: Method, path: &str, body: &str) -> Request<Full<Bytes>> {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "volley.test");
    if !body.is_empty() {
        request = request.header("content-type", "application/json");
    }
    request
        .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))
        .unwrap()
}

/// The events of a stream. Checks that each is named after the type in its data.
pub(crate) fn typed_events(reply: &Reply) -> Vec<Value> {
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.headers["content-type"], "text/event-stream");
    let events = reply.text().split_terminator("\n\n").map(|event| {
        let (name, data) = event.split_once("\ndata: ").expect(event);
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(name, format!("event: {}", data["type"].as_str().unwrap()));
        data
    });
    events.collect()
}

/// A complete response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The body of a success.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// The message of an error in OpenAI's format.
    pub(crate) fn refused_openai(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.text());
        self.json()["error"]["message"].as_str().unwrap().to_owned()
    }

    /// Checks that this is an error with `status` in the dialect's format. Returns its reason.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.text());
        let body = self.json();
        assert_eq!(body["status"], status);
        assert_eq!(
            body["error"]["root_cause"][0]["type"],
            body["error"]["type"]
        );
        assert_eq!(
            body["error"]["root_cause"][0]["reason"],
            body["error"]["reason"]
        );
        assert!(self.headers.contains_key("x-request-id"));
        body["error"]["reason"]
            .as_str()
            .expect("an error has a reason")
            .to_owned()
    }
}

pub(crate) fn text(text: &str) -> GenerationChunk {
    GenerationChunk {
        text: Some(text.to_owned()),
        ..GenerationChunk::default()
    }
}

pub(crate) fn last() -> GenerationChunk {
    GenerationChunk {
        last: true,
        ..GenerationChunk::default()
    }
}

/// The bytes of one event.
pub(crate) fn event(content: &str, is_last: bool) -> String {
    let content = serde_json::to_string(content).unwrap();
    format!(
        "data: {{\"inference_results\":[{{\"output\":[{{\"name\":\"response\",\"dataAsMap\":\
         {{\"content\":{content},\"is_last\":{is_last}}}}}]}}]}}\n\n"
    )
}

/// Waits until `condition` holds.
pub(crate) async fn eventually(what: &'static str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(
        tokio::time::timeout(SOON, wait).await.is_ok(),
        "{what} never happened"
    );
}
