//! What a Triton repository brings beside plain models: ensembles, sequences, loads with files. The
//! judges are Triton's own clients.

use std::path::Path;

use serde_json::{Value, json};
use volley_tests::cluster::Cluster;
use volley_tests::http::{exchange, post};
use volley_tests::judges::{python, root, steps};
use volley_tests::process::run;
use volley_tests::until;

use crate::clients::Up;

const SUMS: &str = "max_batch_size: 8
    input [ { name: 'x' data_type: TYPE_FP32 dims: [ 1 ] } ]
    output [ { name: 'sum' data_type: TYPE_FP32 dims: [ 1 ] } ]
    sequence_batching { max_sequence_idle_microseconds: 60000000
      control_input [
        { name: 'START' control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } ] },
        { name: 'ID' control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] } ]
      state [ { input_name: 'before' output_name: 'after' data_type: TYPE_FP32 dims: [ 1 ] } ] }";

/// Two branches of one input that are joined.
const BOTH: &str = "platform: 'ensemble'
    max_batch_size: 1024
    input [ { name: 'x' data_type: TYPE_FP32 dims: [ 2 ] } ]
    output [ { name: 'y' data_type: TYPE_FP32 dims: [ 2 ] } ]
    ensemble_scheduling { step [
      { model_name: 'adds' model_version: -1
        input_map { key: 'a' value: 'one' } input_map { key: 'b' value: 'two' }
        output_map { key: 'y' value: 'y' } },
      { model_name: 'plus' model_version: -1
        input_map { key: 'x' value: 'x' } output_map { key: 'y' value: 'one' } },
      { model_name: 'plus' model_version: 1
        input_map { key: 'x' value: 'x' } output_map { key: 'y' value: 'two' } } ] }";

/// An ensemble with an ensemble in it, whose name comes after its own.
const AROUND: &str = "platform: 'ensemble'
    max_batch_size: 1024
    input [ { name: 'x' data_type: TYPE_FP32 dims: [ 2 ] } ]
    output [ { name: 'y' data_type: TYPE_FP32 dims: [ 2 ] } ]
    ensemble_scheduling { step [
      { model_name: 'plus' model_version: -1
        input_map { key: 'x' value: 'x' } output_map { key: 'y' value: 'raised' } },
      { model_name: 'both' model_version: -1
        input_map { key: 'x' value: 'raised' } output_map { key: 'y' value: 'y' } } ] }";

fn copy(folder: &Path, name: &str, model: &str) {
    let version = folder.join(name).join("1");
    std::fs::create_dir_all(&version).unwrap();
    let files = root().join("crates/backend-onnx/tests/models").join(model);
    for file in std::fs::read_dir(files).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), version.join(file.file_name())).unwrap();
    }
}

fn configure(folder: &Path, name: &str, config: &str) {
    std::fs::create_dir_all(folder.join(name).join("1")).unwrap();
    std::fs::write(folder.join(name).join("config.pbtxt"), config).unwrap();
}

fn repository(folder: &Path) {
    for (name, model) in [
        ("plus", "external"),
        ("adds", "picky"),
        ("sums", "summing"),
        ("texts", "identity-string"),
    ] {
        copy(folder, name, model);
    }
    configure(folder, "sums", SUMS);
    configure(folder, "both", BOTH);
    configure(folder, "around", AROUND);
    let circle = BOTH.replace("'adds'", "'circle'");
    configure(folder, "circle", &circle);
}

async fn call(rest: &str, path: &str, body: &Value) -> (u16, Value) {
    let (status, answer) = exchange(rest, &post(path, &body.to_string())).await;
    (status, serde_json::from_str(&answer).unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn tritons_clients_find_ensembles_sequences_files_and_shared_memory() {
    let up = Up::start().await;
    let folder = tempfile::tempdir().unwrap();
    repository(folder.path());
    let (url, path) = (
        format!("http://{}", up.rest),
        folder.path().to_string_lossy(),
    );
    let arguments = [
        "model",
        "register",
        "--repository",
        &path,
        "--deploy",
        "--wait",
    ];
    let (told, ok) = run(&[&["--url", &url], &arguments[..]].concat()).await;
    assert!(!ok, "one ensemble leads to itself: {told}");
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines[0], "adds:1 is registered and deployed", "{told}");
    assert_eq!(lines[4], "both is registered as an ensemble", "{told}");
    assert!(lines[5].starts_with("circle is not registered: "), "{told}");
    assert!(lines[5].contains("would lead back to itself"), "{told}");
    assert_eq!(lines[6], "around is registered as an ensemble", "{told}");

    let graph = root().join("crates/backend-onnx/tests/models/identity-float32/model.onnx");
    for (flavor, environment, script) in [
        ("--http", "venv-triton", "get-triton"),
        ("--grpc", "venv-oip", "get-oip-clients"),
    ] {
        let mut judge = python(environment, script, "tests/python/triton/repository.py");
        judge.args([flavor, &up.rest]).arg("--graph").arg(&graph);
        assert_eq!(steps(&mut judge).await, 7, "{flavor}");
    }
}

/// What a step of a sequence gets at one coordinator.
async fn step(rest: &str, sequence: u64, flags: Value) -> (u16, Value) {
    let mut parameters = json!({ "sequence_id": sequence });
    for (name, value) in flags.as_object().unwrap() {
        parameters[name] = value.clone();
    }
    let body = json!({
        "inputs": [{ "name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1] }],
        "parameters": parameters,
    });
    let (status, answer) = call(rest, "/v2/models/sums/infer", &body).await;
    match status {
        200 => (status, answer["outputs"][0]["data"][0].clone()),
        _ => (status, answer["error"].clone()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_stays_on_its_worker_and_ends_with_it() {
    let mut cluster = Cluster::start(3, 2).await;
    let folder = tempfile::tempdir().unwrap();
    copy(folder.path(), "sums", "summing");
    configure(folder.path(), "sums", SUMS);
    let path = folder.path().join("sums");
    let body = json!({ "name": "sums", "function_name": "onnx", "path": path });
    cluster.deploy(&body, 2).await;
    for index in 0..3 {
        // A coordinator that knows one replica has it hold all sequences.
        cluster
            .wait(index, "both replicas are there", |status| {
                let mut models = status.models.iter();
                models.any(|it| it.id == "sums" && it.ready_replicas == 2)
            })
            .await;
    }
    let coordinators: Vec<_> = cluster
        .coordinators
        .iter()
        .map(|it| it.http.clone())
        .collect();
    let at = |place: u64| coordinators[usize::try_from(place % 3).unwrap()].as_str();
    // A replica holds eight at most.
    let sequences = 1..=8_u64;
    for sequence in sequences.clone() {
        let begun = step(at(sequence), sequence, json!({ "sequence_start": true })).await;
        assert_eq!(begun, (200, json!(1.0)));
    }
    // Whichever coordinator is asked, the worker that holds the sequence answers.
    for number in 2..5_u64 {
        for sequence in sequences.clone() {
            let next = step(at(sequence + number), sequence, json!({})).await;
            assert_eq!(next, (200, json!(number as f64)), "{sequence}");
        }
    }
    cluster.workers[0].kill().await;
    let (mut kept, mut lost) = (0, 0);
    for sequence in sequences {
        let next = until("the sequence is answered", || async {
            let next = step(at(0), sequence, json!({})).await;
            (next.0 != 503).then_some(next)
        });
        match next.await {
            (200, sum) => {
                assert_eq!(sum, json!(5.0));
                kept += 1;
            }
            (status, error) => {
                let message = error.as_str().unwrap();
                assert_eq!(status, 400, "{message}");
                assert!(message.contains("start the sequence again"), "{message}");
                let begun = step(at(0), sequence, json!({ "sequence_start": true })).await;
                assert_eq!(begun, (200, json!(1.0)));
                lost += 1;
            }
        }
    }
    assert!(
        0 < kept && 0 < lost,
        "{kept} sequences were on the other worker, {lost} on this one"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sequences_that_run_stay_where_they_began_when_a_replica_joins() {
    let cluster = Cluster::start(3, 2).await;
    let folder = tempfile::tempdir().unwrap();
    copy(folder.path(), "sums", "summing");
    configure(folder.path(), "sums", SUMS);
    let path = folder.path().join("sums");
    let body = json!({ "name": "sums", "function_name": "onnx", "path": path });
    cluster.deploy(&body, 1).await;
    let replicas = async |count| {
        for index in 0..3 {
            cluster
                .wait(index, "the replicas are known", |status| {
                    let mut models = status.models.iter();
                    models.any(|it| it.id == "sums" && it.ready_replicas == count)
                })
                .await;
        }
    };
    replicas(1).await;
    let at = |place: u64| {
        let place = usize::try_from(place % 3).unwrap();
        cluster.coordinators[place].http.as_str()
    };
    let sequences = 1..=8_u64;
    for sequence in sequences.clone() {
        let begun = step(at(sequence), sequence, json!({ "sequence_start": true })).await;
        assert_eq!(begun, (200, json!(1.0)));
    }
    cluster.client(0).deploy("sums", 2).await.unwrap();
    replicas(2).await;
    for number in 2..5_u64 {
        for sequence in sequences.clone() {
            let flags = json!({ "sequence_end": number == 4 });
            let next = step(at(sequence + number), sequence, flags).await;
            assert_eq!(next, (200, json!(number as f64)), "{sequence}");
        }
    }
    // One that has ended is known nowhere, and one that begins may begin at either.
    for sequence in sequences {
        let (status, error) = step(at(sequence), sequence, json!({})).await;
        assert_eq!(status, 400, "{error}");
        assert!(
            error.as_str().unwrap().contains("has not started"),
            "{error}"
        );
        let begun = step(at(sequence), sequence, json!({ "sequence_start": true })).await;
        assert_eq!(begun, (200, json!(1.0)));
    }
}
