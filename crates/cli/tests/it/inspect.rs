//! Compares the output of `volley model inspect` for each format with the files in
//! `tests/inspected`. `VOLLEY_WRITE_GOLDEN=1` updates the files.

use std::path::{Path, PathBuf};

use crate::support::{text, volley};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn test_model(name: &str) -> PathBuf {
    root().join("crates/backend-onnx/tests/models").join(name)
}

/// Compares the output with the file of this name. Values that depend on the machine are ignored:
/// the device, and the number of sessions of a text encoder.
async fn said(name: &str, arguments: &[&Path]) {
    let mut all = vec!["model", "inspect"];
    all.extend(arguments.iter().map(|it| it.to_str().unwrap()));
    let said = text(&volley(&all).await);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/inspected");
    let file = golden.join(format!("{name}.txt"));
    let of_machine: &[&str] = match said.contains("text encoder") {
        true => &["device ", "largest run ", "memory ", "sessions "],
        false => &["device "],
    };
    let is_of_machine = |line: &str| of_machine.iter().any(|of_it| line.starts_with(of_it));
    for of_it in of_machine {
        let lines = said.lines().filter(|line| line.starts_with(of_it));
        assert_eq!(lines.count(), 1, "{said}");
    }
    let lines = said.lines().filter(|line| !is_of_machine(line));
    let told: String = lines.map(|line| format!("{line}\n")).collect();
    if std::env::var_os("VOLLEY_WRITE_GOLDEN").is_some() {
        std::fs::create_dir_all(&golden).unwrap();
        std::fs::write(&file, &told).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap();
    assert_eq!(told, expected, "{name}");
}

#[tokio::test]
async fn a_bare_graph_with_external_data_is_told() {
    said("bare", &[&test_model("external").join("model.onnx")]).await;
    said("strings", &[&test_model("identity-string")]).await;
    said("ragged", &[&test_model("ragged")]).await;
}

#[tokio::test]
async fn an_export_of_hugging_face_is_told() {
    for name in [
        "text-embed",
        "text-rerank",
        "text-classify",
        "text-tokens",
        "text-sparse",
        "plain-decoder",
        "paired-decoder",
    ] {
        said(name, &[&test_model(name)]).await;
    }
}

#[tokio::test]
async fn a_directory_of_onnxruntime_genai_is_told() {
    said("genai", &[&root().join("models/storyteller")]).await;
}

#[tokio::test]
async fn a_triton_repository_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let version = folder.path().join("3");
    std::fs::create_dir(&version).unwrap();
    let graph = root().join("models/classifier/model.onnx");
    std::fs::copy(graph, version.join("model.onnx")).unwrap();
    let config = "platform: \"onnxruntime_onnx\"\nmax_batch_size: 16\n\
                  input [ { name: \"pixels\" data_type: TYPE_FP32 dims: [ 8, 8 ] } ]\n\
                  dynamic_batching { }\n";
    std::fs::write(folder.path().join("config.pbtxt"), config).unwrap();
    said("triton", &[folder.path()]).await;
}

#[tokio::test]
async fn a_model_of_opensearch_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let model = test_model("text-embed");
    std::fs::copy(
        model.join("tokenizer.json"),
        folder.path().join("tokenizer.json"),
    )
    .unwrap();
    std::fs::copy(
        model.join("model.onnx"),
        folder.path().join("all-tiny.onnx"),
    )
    .unwrap();
    // Without its registered configuration, the model is no text encoder.
    let refused = volley(&["model", "inspect", folder.path().to_str().unwrap()]).await;
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(message.contains("config.json is missing"), "{message}");
    let tensors = folder.path().join("model.toml");
    std::fs::write(&tensors, "task = \"tensors\"\n").unwrap();
    said("opensearch-alone", &[folder.path()]).await;
    std::fs::remove_file(tensors).unwrap();
    let config = tempfile::NamedTempFile::new().unwrap();
    let all = std::fs::read_to_string(model.join("config.json")).unwrap();
    let told = serde_json::json!({
        "model_type": "bert", "framework_type": "sentence_transformers",
        "embedding_dimension": 16, "pooling_mode": "CLS", "normalize_result": true,
        "query_prefix": "query: ", "model_max_length": 24, "all_config": all,
    });
    std::fs::write(config.path(), told.to_string()).unwrap();
    let option = Path::new("--model-config");
    said("opensearch", &[folder.path(), option, config.path()]).await;
}
