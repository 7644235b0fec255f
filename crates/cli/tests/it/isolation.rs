//! Models in separate processes, with the real binary, the real library and real crashes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, FixedSizeListArray, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field};
use futures::{StreamExt, TryStreamExt};
use serde_json::json;
use volley_backend::{Backend, BackendLoader};
use volley_backend_onnx::{Device, OnnxConfig, OnnxLoader, Runtime};
use volley_client::ClientError;
use volley_model_host::{HostedLoader, Program, Restarts, Use};
use volley_telemetry::Metrics;
use volley_types::registry::{Assignment, BackendName, ModelSource, ModelVersionSpec};
use volley_types::{
    ChunkStream, ErrorCode, ErrorOrigin, GenerationRow, Input, ModelName, ModelRef, ModelVersion,
    ParamValue, Parameters, PredictError, PredictRequest,
};

use crate::nodes::Pair;
use crate::support::{SOON, text, until, volley};

/// A loader with processes that are distinguishable from those of other tests.
pub(crate) struct Hosts {
    pub(crate) loader: HostedLoader,
    /// The loader without processes.
    plain: OnnxLoader,
    metrics: Metrics,
    mark: String,
}

impl Hosts {
    fn new(mark: &str) -> Self {
        Self::with(mark, Use::Serve, None)
    }

    fn with(mark: &str, what_for: Use, memory_limit: Option<u64>) -> Self {
        Self::limited(mark, what_for, memory_limit, Duration::from_secs(20))
    }

    /// Like `with`, with a time limit for each run.
    pub(crate) fn limited(
        mark: &str,
        what_for: Use,
        memory_limit: Option<u64>,
        run_timeout: Duration,
    ) -> Self {
        let library = Runtime::locate(None).expect("run scripts/get-ort.sh before the tests");
        let runtime = Runtime::init(&library);
        let config = OnnxConfig {
            device: Device::Cpu,
            slots: 4,
            run_timeout,
            ..OnnxConfig::default()
        };
        let mark = format!("error,mark_{mark}=error");
        let program = Program {
            path: env!("CARGO_BIN_EXE_volley").into(),
            arguments: ["model-host", "--log", &mark].map(Into::into).to_vec(),
            memory_limit,
            loader: json!({ "library": library, "onnx": config }),
        };
        let metrics = Metrics::new();
        let inner = || OnnxLoader::new(runtime.clone(), config);
        let restarts = Restarts {
            first_wait: Duration::from_millis(20),
            most: 3,
            ..Restarts::default()
        };
        let loader = HostedLoader::new(Arc::new(inner()), program, what_for, metrics.clone());
        Self {
            loader: loader.with_restarts(restarts),
            plain: inner(),
            metrics,
            mark,
        }
    }

    pub(crate) async fn load(&self, directory: &Path) -> Result<Arc<dyn Backend>, PredictError> {
        let assignment = assignment(directory);
        let load = self.loader.load(&assignment);
        tokio::time::timeout(SOON, load).await.expect("in time")
    }

    /// The running processes.
    fn processes(&self) -> Vec<String> {
        processes(&self.mark)
    }

    /// The private data of the only process, in bytes.
    fn data_bytes(&self) -> u64 {
        let process = &self.processes()[0];
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmData:"));
        let kibibytes: u64 = line
            .unwrap()
            .trim()
            .trim_end_matches("kB")
            .trim()
            .parse()
            .unwrap();
        kibibytes << 10
    }

    async fn signal(&self, signal: &str) {
        let [process] = &self.processes()[..] else {
            panic!("one process: {:?}", self.processes());
        };
        let mut kill = tokio::process::Command::new("kill");
        let sent = kill.args(["-s", signal, process]).status().await;
        assert!(sent.unwrap().success());
    }

    fn ends(&self) -> u64 {
        let text = self.metrics.encode();
        let mut lines = text.lines();
        let line = lines.find(|line| line.starts_with("volley_model_process_exits_total"));
        let number = line.and_then(|line| line.rsplit(' ').next());
        number.map_or(0, |number| number.parse().unwrap())
    }

    pub(crate) async fn gone(&self) {
        let none = async || self.processes().is_empty().then_some(());
        until("no process is left", none).await;
    }
}

/// Processes with `mark` in their arguments.
fn processes(mark: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let ours = names.filter(|name| {
        // A process that has exited has no arguments.
        let line = std::fs::read(format!("/proc/{name}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(mark)
    });
    ours.collect()
}

fn assignment(directory: &Path) -> Assignment {
    Assignment {
        model: ModelName::new("m").unwrap(),
        spec: ModelVersionSpec {
            version: ModelVersion(1),
            backend: BackendName::ONNX,
            source: ModelSource::Path(directory.to_string_lossy().into_owned()),
            parameters: Parameters::default(),
            description: String::new(),
            created_ms: 0,
        },
        connector: None,
    }
}

fn storyteller() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/storyteller")
}

pub(crate) fn test_model(name: &str) -> PathBuf {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../backend-onnx/tests/models");
    models.join(name)
}

pub(crate) fn request(batch: RecordBatch, parameters: &[(&str, i64)]) -> PredictRequest {
    let model = ModelRef::deployed(ModelName::new("m").unwrap());
    let mut request = PredictRequest::new(model, Input::Batch(batch));
    let pairs = parameters.iter();
    let pairs = pairs.map(|(name, value)| ((*name).to_owned(), ParamValue::Int(*value)));
    request.parameters = pairs.collect();
    request
}

fn prompts(prompts: &[&str]) -> RecordBatch {
    let column: ArrayRef = Arc::new(StringArray::from(prompts.to_vec()));
    RecordBatch::try_from_iter_with_nullable([("prompt", column, true)]).unwrap()
}

async fn tell(model: &Arc<dyn Backend>, tokens: i64) -> Result<String, PredictError> {
    let batch = prompts(&["Tell me a story about a fox.", "And one about a crow."]);
    texts(
        model
            .predict(request(batch, &[("max_tokens", tokens)]))
            .await?,
    )
    .await
}

async fn texts(answer: ChunkStream) -> Result<String, PredictError> {
    let batches: Vec<_> = answer.try_collect().await?;
    let rows = batches
        .iter()
        .flat_map(|batch| GenerationRow::rows(batch).unwrap());
    let mut rows: Vec<_> = rows
        .map(|row| (row.item(), row.text().unwrap_or_default()))
        .collect();
    rows.sort_by_key(|(item, _)| *item);
    Ok(rows.into_iter().map(|(_, text)| text).collect())
}

/// A long generation that has started.
async fn begun(model: &Arc<dyn Backend>) -> ChunkStream {
    // Two of four slots: a stream that is not read keeps its slot.
    begun_with(model, &["Tell me a story."; 2]).await
}

async fn begun_with(model: &Arc<dyn Backend>, texts: &[&str]) -> ChunkStream {
    let mut request = request(prompts(texts), &[("max_tokens", 900)]);
    let endless = [("ignore_eos".to_owned(), ParamValue::Bool(true))];
    request.parameters = request
        .parameters
        .or_defaults(&endless.into_iter().collect());
    let mut answer = model.predict(request).await.unwrap();
    answer.next().await.unwrap().unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_in_its_process_answers_as_one_without() {
    let hosts = Hosts::new("alike");
    let hosted = hosts.load(&storyteller()).await.unwrap();
    let plain = hosts.plain.load(&assignment(&storyteller())).await.unwrap();
    assert_eq!(hosted.capacity(), plain.capacity());
    assert!(plain.memory_bytes() < hosted.memory_bytes());
    let model = ModelRef::deployed(ModelName::new("m").unwrap());
    let (one, other) = (
        hosted.signature(&model).await,
        plain.signature(&model).await,
    );
    assert_eq!(one.unwrap(), other.unwrap());
    let told = tell(&hosted, 40).await.unwrap();
    assert_eq!(told, tell(&plain, 40).await.unwrap());
    // Errors have the same text with and without a process.
    let wrong = |model: Arc<dyn Backend>| async move {
        let batch = prompts(&["x"]);
        let answer = model.predict(request(batch, &[("top_p", 3)])).await;
        match answer {
            Ok(answer) => texts(answer).await.unwrap_err().to_string(),
            Err(error) => error.to_string(),
        }
    };
    assert_eq!(wrong(hosted.clone()).await, wrong(plain).await);

    let one = hosts.processes();
    assert_eq!(one.len(), 1, "{one:?}");
    // Dropping a stream stops its generation in the process.
    drop(begun(&hosted).await);
    assert!(tell(&hosted, 3).await.is_ok());
    drop(hosted);
    hosts.gone().await;
    assert_eq!(hosts.ends(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_crashes_ends_its_streams_in_one_error_and_comes_back() {
    let hosts = Hosts::new("crash");
    let model = hosts.load(&storyteller()).await.unwrap();
    let expected = tell(&model, 20).await.unwrap();
    // More than the model can generate before the process ends.
    let mut running = [begun_with(&model, &["Tell me a story."; 64]).await];
    // SIGABRT, because Rust's handler would catch a SIGSEGV that was only sent, and continue.
    hosts.signal("ABRT").await;
    for stream in &mut running {
        let error = loop {
            match stream.next().await {
                Some(Ok(_)) => {}
                Some(Err(error)) => break error,
                None => panic!("a stream ended in silence"),
            }
        };
        // `Unavailable` allows another replica to continue the generation.
        assert_eq!(error.code, ErrorCode::Unavailable, "{error}");
        assert_eq!(error.origin, ErrorOrigin::Model);
        assert!(error.message.contains("signal 6"), "{error}");
        assert!(stream.next().await.is_none(), "nothing follows the error");
    }
    assert_eq!(hosts.ends(), 1);
    let back = async || tell(&model, 20).await.ok();
    assert_eq!(until("the process is back", back).await, expected);
    assert_eq!(hosts.processes().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_hangs_is_killed_and_replaced() {
    let hosts = Hosts::new("hangs");
    let model = hosts.load(&storyteller()).await.unwrap();
    let mut running = begun(&model).await;
    hosts.signal("STOP").await;
    let error = loop {
        match running.next().await {
            Some(Ok(_)) => {}
            other => break other.unwrap().unwrap_err(),
        }
    };
    assert!(error.message.contains("stopped responding"), "{error}");
    let back = async || tell(&model, 3).await.ok();
    until("the process is back", back).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_crashes_again_and_again_is_lost() {
    let hosts = Hosts::new("lost");
    let model = hosts.load(&storyteller()).await.unwrap();
    let lost = tokio::spawn(model.lost().unwrap());
    for ends in 1..=3 {
        hosts.signal("ABRT").await;
        let counted = async || (hosts.ends() == ends).then_some(());
        until("the end is counted", counted).await;
        if ends < 3 {
            until("it is back", async || tell(&model, 3).await.ok()).await;
        }
    }
    let told = lost.await.unwrap().expect("it was not unloaded");
    assert!(told.message.contains("signal 6"), "{told}");
    assert!(told.message.contains("3 times"), "{told}");
    let refused = tell(&model, 3).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Unavailable);
    hosts.gone().await;
    assert!(model.lost().unwrap().await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_is_given_up_ends_with_its_process() {
    let hosts = Hosts::new("given_up");
    assert!(hosts.loader.stops_when_dropped(&assignment(Path::new("/"))));
    for name in ["hostile/functions-unfold", "hostile/fold-for-seconds"] {
        let assignment = assignment(&test_model(name));
        let patience = Duration::from_millis(700);
        let load = tokio::time::timeout(patience, hosts.loader.load(&assignment)).await;
        if let Ok(loaded) = load {
            // The load finished in time, or was rejected.
            drop(loaded);
        }
        hosts.gone().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_takes_no_more_memory_than_it_may() {
    let hosts = Hosts::with("memory", Use::Serve, Some(1 << 30));
    let hungry = hosts.load(&test_model("hungry")).await.unwrap();
    let ask = async |rows: i64, columns: i64| {
        let item = Arc::new(Field::new("item", DataType::Int64, false));
        let shape: ArrayRef = Arc::new(Int64Array::from(vec![rows, columns]));
        let column: ArrayRef = Arc::new(FixedSizeListArray::new(item, 2, shape, None));
        let batch = RecordBatch::try_from_iter([("shape", column)]).unwrap();
        let answer = hungry.predict(request(batch, &[])).await?;
        answer.try_collect::<Vec<_>>().await
    };
    assert_eq!(ask(2, 3).await.unwrap()[0].num_rows(), 1);
    // 2 GiB of numbers: the machine has the memory, but the process may not use it.
    let error = ask(1 << 15, 1 << 14).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::TooLarge, "{}", error.chain());
    // A rejected allocation must not be repeated for small requests.
    let before = hosts.data_bytes();
    assert_eq!(ask(1 << 10, 3 << 10).await.unwrap()[0].num_rows(), 1);
    let grown = hosts.data_bytes().saturating_sub(before);
    assert!(
        grown < 200 << 20,
        "12 MiB of numbers took {} MiB",
        grown >> 20
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_operator_takes_no_more_memory_than_a_process_may() {
    // A model that needs a process keeps it although others are only tried in one.
    let hosts = Hosts::with("operator", Use::Probe, Some(1 << 30));
    let repeating = hosts.load(&test_model("repeating")).await.unwrap();
    assert_eq!(hosts.processes().len(), 1);
    let ask = async |letters: usize, copies: i64| {
        let list = |values: ArrayRef| {
            let item = Arc::new(Field::new("item", values.data_type().clone(), false));
            Arc::new(FixedSizeListArray::new(item, 1, values, None)) as ArrayRef
        };
        let text = list(Arc::new(StringArray::from(vec!["x".repeat(letters)])));
        let count = list(Arc::new(Int64Array::from(vec![copies])));
        let batch = RecordBatch::try_from_iter([("text", text), ("count", count)]).unwrap();
        let answer = repeating.predict(request(batch, &[])).await?;
        answer.try_collect::<Vec<_>>().await
    };
    assert_eq!(ask(1_000, 10).await.unwrap()[0].num_rows(), 1);
    // The tensor takes 32 MB, its texts 2 GB.
    let error = ask(2_000, 1_000_000).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::TooLarge, "{}", error.chain());
    assert!(error.message.contains("more memory than it may"), "{error}");
    // More such requests than ends that fail a replica.
    for _ in 0..4 {
        let answer = async || ask(1_000, 10).await.ok();
        assert_eq!(until("it is back", answer).await[0].num_rows(), 1);
        ask(2_000, 1_000_000).await.unwrap_err();
    }
    until("it is back", async || ask(1_000, 10).await.ok()).await;
}

/// A model of 270 bytes that ONNX Runtime loads, and that then dereferences a null pointer.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_ends_its_process_when_it_runs_is_never_served() {
    for what_for in [Use::Serve, Use::Probe] {
        let hosts = Hosts::with("loop", what_for, None);
        let refused = hosts.load(&test_model("hostile/loop-without-count")).await;
        let refused = refused.err().expect("it is refused");
        assert_eq!(refused.code, ErrorCode::InvalidInput, "{refused}");
        assert!(refused.message.contains("signal 11"), "{refused}");
        let fine = hosts.load(&test_model("identity-float32")).await;
        assert!(fine.is_ok(), "everybody else lives on");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_breaks_its_process_fails_its_load_with_a_reason() {
    for what_for in [Use::Serve, Use::Probe] {
        let mut hosts = Hosts::with("broken", what_for, None);
        for name in ["hostile/cycle", "hostile/external-above"] {
            let refused = hosts.load(&test_model(name)).await.err().unwrap();
            let plain = hosts.plain.load(&assignment(&test_model(name))).await;
            assert_eq!(refused.to_string(), plain.err().unwrap().to_string());
        }
        let mut script = |script: &str| {
            let plain =
                OnnxLoader::new(Err(PredictError::invalid("unused")), OnnxConfig::default());
            let program = Program {
                path: "/bin/sh".into(),
                arguments: ["-c", script].map(Into::into).to_vec(),
                memory_limit: None,
                loader: json!(null),
            };
            let metrics = Metrics::new();
            hosts.loader = HostedLoader::new(Arc::new(plain), program, what_for, metrics);
        };
        script("kill -SEGV $$");
        let refused = hosts.load(&test_model("ragged")).await.err().unwrap();
        assert_eq!(refused.code, ErrorCode::InvalidInput, "{refused}");
        assert!(refused.message.contains("signal 11"), "{refused}");
        assert!(!refused.message.contains('/'), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_processes_serves_through_their_ends() {
    let folder = tempfile::tempdir().unwrap();
    let pair = Pair::start_with(
        folder.path(),
        "[onnx]\ndevice = \"cpu\"\nisolation = \"process\"\nslots = 4\n",
    )
    .await;
    let directory = storyteller().canonicalize().unwrap();
    let run = async |arguments: &[&str]| volley(&[&["--url", &pair.url], arguments].concat()).await;
    let path = directory.to_str().unwrap();
    text(&run(&["model", "register", "story", "--path", path]).await);
    text(&run(&["model", "deploy", "story", "--wait"]).await);

    let endless = json!({ "prompt": "Tell me a story.", "max_tokens": 900, "ignore_eos": true });
    let mut stream = pair.client.stream("story", &endless).await.unwrap();
    stream.next().await.unwrap().unwrap();
    let worker = pair.worker_process();
    let hosts = processes("model-host");
    let of_worker = |process: &&String| {
        let status = std::fs::read_to_string(format!("/proc/{process}/status"));
        let parent = format!("PPid:\t{worker}");
        status
            .unwrap_or_default()
            .lines()
            .any(|line| line == parent)
    };
    let child = hosts.iter().find(of_worker).expect("a process");
    let mut kill = tokio::process::Command::new("kill");
    assert!(
        kill.args(["-s", "ABRT", child])
            .status()
            .await
            .unwrap()
            .success()
    );
    let error = loop {
        match stream.next().await {
            Some(Ok(_)) => {}
            Some(Err(error)) => break error,
            None => panic!("a stream ended in silence"),
        }
    };
    let ClientError::Refused { code, reason, .. } = error else {
        panic!("an error event: {error}");
    };
    assert_eq!(code, "unavailable", "no other replica could go on");
    assert!(reason.contains("signal 6"), "{reason}");
    assert!(stream.next().await.is_none());
    let back = async || {
        let output = run(&["predict", "story", "Tell me a story.", "-p", "max_tokens=5"]).await;
        output.status.success().then_some(())
    };
    until("it answers again", back).await;
}
