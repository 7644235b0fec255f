//! A server that sends the bytes of a script and reports when its client disconnects.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use aws_smithy_eventstream::frame::write_message_to;
use aws_smithy_types::event_stream::{Header, HeaderValue, Message};
use futures::StreamExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use volley_backend::{Backend, BackendLoader};
use volley_backend_remote::{RemoteConfig, RemoteLoader};
use volley_types::registry::{
    Assignment, BackendName, ConnectorPolicy, ConnectorSpec, CredentialRef, ModelSource,
    ModelVersionSpec, ProviderName,
};
use volley_types::*;

/// An action of the server on a connection, after it has read the request.
#[derive(Clone)]
pub(crate) enum Act {
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Sends these bytes one at a time.
    Drip(Vec<u8>),
    /// Sends nothing more until the client disconnects.
    Hang,
    /// Sends bytes without a line end for as long as the client reads.
    Flood,
}

pub(crate) struct Server {
    pub(crate) url: String,
    /// The received requests.
    pub(crate) requests: mpsc::UnboundedReceiver<String>,
    /// Notifies when [`Act::Hang`] begins.
    pub(crate) hangs: mpsc::UnboundedReceiver<()>,
    /// Notifies when a client has disconnected during [`Act::Hang`].
    pub(crate) left: oneshot::Receiver<Instant>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) fn head(status: &str, media: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\ncontent-type: {media}\r\nconnection: close\r\n\r\n").into_bytes()
}

/// The head of a successful answer and these events.
pub(crate) fn events(events: &[&str]) -> Vec<u8> {
    let mut bytes = head("200 OK", "text/event-stream; charset=utf-8");
    for event in events {
        bytes.extend_from_slice(event.as_bytes());
        bytes.extend_from_slice(b"\n\n");
    }
    bytes
}

/// Builds frames from lines. Each line has an event type, or an exception type after `!`, and a
/// payload.
pub(crate) fn frames(lines: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in lines.lines() {
        let (kind, payload) = line.split_once(' ').unwrap();
        let (message, of, kind) = match kind.strip_prefix('!') {
            Some(kind) => ("exception", ":exception-type", kind),
            None => ("event", ":event-type", kind),
        };
        let pairs = [
            (of, kind),
            (":content-type", "application/json"),
            (":message-type", message),
        ];
        let headers = pairs
            .map(|(name, value)| Header::new(name, HeaderValue::String(value.to_owned().into())));
        let message = Message::new_from_parts(headers.to_vec(), payload.as_bytes().to_vec());
        write_message_to(&message, &mut bytes).unwrap();
    }
    bytes
}

/// Runs the same script on each connection.
pub(crate) async fn serve(acts: Vec<Act>) -> Server {
    serve_each(std::iter::repeat(acts)).await
}

/// Runs each script on one connection, in order, and accepts no more connections after them.
pub(crate) async fn serve_each(
    scripts: impl IntoIterator<Item = Vec<Act>, IntoIter: Send + 'static>,
) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "http://{}/v1/chat/completions",
        listener.local_addr().unwrap()
    );
    let (told, requests) = mpsc::unbounded_channel();
    let (hang, hangs) = mpsc::unbounded_channel();
    let (leave, left) = oneshot::channel();
    let scripts = scripts.into_iter();
    let task = tokio::spawn(async move {
        let mut leave = Some(leave);
        for acts in scripts {
            let Ok((mut socket, _)) = listener.accept().await else {
                return;
            };
            told.send(request(&mut socket).await).unwrap();
            for act in &acts {
                if matches!(act, Act::Hang) {
                    let _ = hang.send(());
                }
                play(&mut socket, act, &mut leave).await;
            }
        }
    });
    Server {
        url,
        requests,
        hangs,
        left,
        task,
    }
}

async fn play(socket: &mut TcpStream, act: &Act, leave: &mut Option<oneshot::Sender<Instant>>) {
    match act {
        Act::Send(bytes) => {
            let _ = socket.write_all(bytes).await;
        }
        Act::Drip(bytes) => {
            socket.set_nodelay(true).unwrap();
            for byte in bytes {
                let _ = socket.write_all(&[*byte]).await;
                tokio::task::yield_now().await;
            }
        }
        Act::Hang => {
            let mut byte = [0];
            while !matches!(socket.read(&mut byte).await, Ok(0) | Err(_)) {}
            if let Some(leave) = leave.take() {
                let _ = leave.send(Instant::now());
            }
        }
        Act::Flood => {
            let junk = vec![b'x'; 64 << 10];
            for _ in 0..512 {
                if socket.write_all(&junk).await.is_err() {
                    return;
                }
            }
        }
    }
}

async fn request(socket: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = socket.read(&mut buffer).await.unwrap();
        text.extend_from_slice(&buffer[..read]);
        let whole = String::from_utf8_lossy(&text).into_owned();
        let Some((head, body)) = whole.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.to_ascii_lowercase();
        let length = length
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        if read == 0 || length.unwrap_or(0) <= body.len() {
            return whole;
        }
    }
}

pub(crate) fn config() -> RemoteConfig {
    RemoteConfig {
        connect_timeout: Duration::from_secs(10),
        // Local servers answer within this time, even on a busy machine.
        first_byte_timeout: Duration::from_millis(1_500),
        stall_timeout: Duration::from_millis(1_500),
        ..RemoteConfig::default()
    }
}

/// Request template and response paths of the server without a known provider.
const TEMPLATE: &str = r#"{ "talk": ${parameters.messages}, "name": "${parameters.model}",
    "heat": ${parameters.temperature:-1}, "stream": true }"#;
const PATHS: &str = r#"{ "text": "$.out[*].piece", "thinking": "$.thought", "tool_calls": "$.calls",
    "finish_reason": "$.why", "prompt_tokens": "$.count.in", "completion_tokens": "$.count['out']",
    "error": "$.fault", "done": "$.final" }"#;

/// The providers with transcripts. Each has a folder in `tests/fixtures/`.
pub(crate) fn recorded() -> Vec<ProviderName> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
    let folders = std::fs::read_dir(folder).unwrap();
    let names = folders.map(|folder| folder.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names
        .map(|name| ProviderName::new(&name).unwrap())
        .collect();
    names.sort_unstable();
    names
}

/// The description of a provider's server in its folder: URL, credential and end of answers.
pub(crate) fn server_of(provider: ProviderName) -> serde_json::Value {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
    let text = std::fs::read_to_string(format!("{folder}/{provider}/server.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

pub(crate) fn connector(url: &str, provider: ProviderName) -> ConnectorSpec {
    let text = |name: &str, text: &str| (name.to_owned(), ParamValue::Text(text.to_owned()));
    let (parameters, request_body) = match provider.as_str() {
        "bedrock" => (vec![text("region", "us-east-1")], None),
        "http" => (
            vec![text("response", PATHS), text("credential_header", "x-key")],
            Some(TEMPLATE.to_owned()),
        ),
        _ => (Vec::new(), None),
    };
    let parameters = parameters.into_iter().collect();
    ConnectorSpec {
        id: ConnectorId::new("c").unwrap(),
        name: "c".to_owned(),
        provider,
        url: url.to_owned(),
        model: "the-model".to_owned(),
        credential: None,
        headers: std::collections::BTreeMap::new(),
        parameters,
        request_body,
        // Most tests make one call.
        policy: ConnectorPolicy {
            max_retries: 0,
            breaker_window: 0,
            ..ConnectorPolicy::default()
        },
    }
}

pub(crate) async fn load(
    connector: ConnectorSpec,
    config: RemoteConfig,
) -> Result<Arc<dyn Backend>, PredictError> {
    loader(config)?.load(&assignment(connector)).await
}

/// The assignment for a worker to load.
pub(crate) fn assignment(connector: ConnectorSpec) -> Assignment {
    Assignment {
        model: ModelName::new("m").unwrap(),
        spec: ModelVersionSpec {
            version: ModelVersion(1),
            backend: BackendName::REMOTE,
            source: ModelSource::Connector(connector.id.clone()),
            parameters: Parameters::default(),
            description: String::new(),
            created_ms: 0,
        },
        connector: Some(connector),
    }
}

/// A file with a credential. It is deleted after the test.
pub(crate) fn key_file(text: &str) -> CredentialRef {
    thread_local! {
        static FOLDER: tempfile::TempDir = tempfile::tempdir().unwrap();
        static FILES: Cell<u32> = const { Cell::new(0) };
    }
    let number = FILES.replace(FILES.get() + 1);
    let path = FOLDER.with(|folder| folder.path().join(format!("key-{number}")));
    std::fs::write(&path, text).unwrap();
    CredentialRef::File(path.to_string_lossy().into_owned())
}

thread_local! {
    /// A loader reads all certificates of the system, which is slow. Each test has its own thread.
    static LOADERS: RefCell<Vec<(RemoteConfig, RemoteLoader)>> = const { RefCell::new(Vec::new()) };
}

fn loader(config: RemoteConfig) -> Result<RemoteLoader, PredictError> {
    // An earlier test of the process may have installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    LOADERS.with_borrow_mut(|loaders| {
        if let Some((_, known)) = loaders.iter().find(|(given, _)| *given == config) {
            return Ok(known.clone());
        }
        let made = RemoteLoader::new(config.clone())?;
        loaders.push((config, made.clone()));
        Ok(made)
    })
}

/// Makes a request with these rows.
pub(crate) async fn ask_rows(
    model: &Arc<dyn Backend>,
    name: &str,
    rows: ArrayRef,
    parameters: Parameters,
) -> ChunkStream {
    let batch = RecordBatch::try_from_iter_with_nullable([(name, rows, true)]).unwrap();
    let reference = ModelRef::deployed(ModelName::new("m").unwrap());
    let mut request = PredictRequest::new(reference, Input::Batch(batch));
    request.parameters = parameters;
    model.predict(request).await.unwrap()
}

pub(crate) async fn open(
    model: &Arc<dyn Backend>,
    parameters: &[(&str, ParamValue)],
) -> ChunkStream {
    let prompt: ArrayRef = Arc::new(StringArray::from(vec!["hello"]));
    let pairs = parameters
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()));
    ask_rows(model, "prompt", prompt, pairs.collect()).await
}

/// All text, the last row and the error.
#[derive(Debug, Default)]
pub(crate) struct Read {
    pub(crate) text: String,
    pub(crate) thinking: String,
    /// Id, name and arguments of each tool call.
    pub(crate) calls: Vec<[String; 3]>,
    pub(crate) citations: Vec<Citation>,
    pub(crate) rows: usize,
    pub(crate) finish: Option<FinishReason>,
    pub(crate) usage: Option<Usage>,
    pub(crate) last: bool,
    pub(crate) error: Option<PredictError>,
}

pub(crate) async fn read(mut chunks: ChunkStream) -> Read {
    let (mut read, mut sequence) = (Read::default(), 0);
    while let Some(batch) = chunks.next().await {
        match batch {
            Ok(batch) => {
                for row in GenerationRow::rows(&batch).unwrap() {
                    assert!(!read.last, "nothing follows the last row");
                    assert_eq!(row.sequence(), sequence);
                    sequence += 1;
                    read.rows += 1;
                    read.text.push_str(row.text().unwrap_or_default());
                    read.thinking.push_str(row.thinking().unwrap_or_default());
                    if let Some(deltas) = row.tool_calls() {
                        add(&mut read.calls, deltas);
                    }
                    let cited = row.citations().map(Citation::from_json);
                    read.citations.extend(cited.into_iter().flatten());
                    read.finish = row.finish_reason().or(read.finish);
                    read.usage = row.usage().or(read.usage);
                    read.last = row.last();
                }
            }
            Err(error) => read.error = Some(error),
        }
    }
    assert!(
        read.last != read.error.is_some(),
        "a last row or an error, and never both: {read:?}"
    );
    read
}

/// Merges deltas in OpenAI's format. The first delta of a call has its id and name.
fn add(calls: &mut Vec<[String; 3]>, deltas: &str) {
    let deltas: Vec<serde_json::Value> = serde_json::from_str(deltas).unwrap();
    for delta in deltas {
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        let index = usize::try_from(delta["index"].as_u64().expect("an index")).unwrap();
        let function = &delta["function"];
        if let Some(name) = text(&function["name"]) {
            assert_eq!(index, calls.len(), "calls begin in order");
            let id = text(&delta["id"]).expect("a call has an id");
            calls.push([id, name, String::new()]);
        }
        calls[index][2].push_str(&text(&function["arguments"]).unwrap_or_default());
    }
}
