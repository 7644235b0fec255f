//! Classifiers of tables, from a Triton repository to their callers.

use std::path::Path;

use serde_json::{Value, json};
use volley_tests::http::{exchange, post};
use volley_tests::judges::root;
use volley_tests::process::run;
use volley_tests::until;

use crate::clients::Up;

/// A repository of two models, and one of a platform that is not served.
fn repository(folder: &Path) {
    let models = root().join("crates/backend-onnx/tests/models");
    for (name, model) in [("boosted", "xgboost"), ("survive", "sklearn-columns")] {
        let version = folder.join(name).join("1");
        std::fs::create_dir_all(&version).unwrap();
        let graph = models.join(model).join("model.onnx");
        std::fs::copy(graph, version.join("model.onnx")).unwrap();
    }
    std::fs::create_dir_all(folder.join("planned/1")).unwrap();
    let config = "platform: \"tensorrt_plan\"\n";
    std::fs::write(folder.join("planned/config.pbtxt"), config).unwrap();
}

async fn call(up: &Up, path: &str, body: &Value) -> Value {
    let (status, answer) = exchange(&up.rest, &post(path, &body.to_string())).await;
    assert_eq!(status, 200, "{answer}");
    serde_json::from_str(&answer).unwrap()
}

/// The output of that name among those of an answer.
fn output<'a>(outputs: &'a Value, name: &str) -> &'a Value {
    let mut outputs = outputs.as_array().unwrap().iter();
    outputs.find(|output| output["name"] == name).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_is_registered_with_one_command_and_its_tables_are_answered() {
    let up = Up::start().await;
    let folder = tempfile::tempdir().unwrap();
    repository(folder.path());
    let (url, path) = (
        format!("http://{}", up.rest),
        folder.path().to_string_lossy(),
    );
    let arguments = ["model", "register", "--repository", &path, "--deploy"];
    let (told, ok) = run(&[&["--url", &url], &arguments[..]].concat()).await;
    assert!(!ok, "one model is not registered: {told}");
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines[0], "boosted:1 is registered and being deployed");
    assert!(
        lines[1].starts_with("planned is not registered: "),
        "{told}"
    );
    assert!(lines[1].contains("tensorrt_plan"), "{told}");
    assert_eq!(lines[2], "survive:1 is registered and being deployed");

    let client = up.client();
    for model in ["boosted", "survive"] {
        until("the model is deployed", || async {
            let found = client.model(model).await.ok()?;
            (found.model_state == "DEPLOYED").then_some(())
        })
        .await;
    }
    let rows = json!({ "inputs": {
        "age": [22, 38], "fare": [7.25, 171.2833], "city": ["Southampton", "Cherbourg"],
    }});
    let answer = call(&up, "/_plugins/_ml/models/survive/_predict", &rows).await;
    let outputs = &answer["inference_results"][0]["output"];
    assert_eq!(output(outputs, "output_label")["data"], json!([0, 1]));
    let chances = output(outputs, "output_probability");
    assert_eq!(chances["shape"], json!([2, 2]));
    let of_rest = chances["data"][3].as_f64().unwrap();
    assert!(0.5 < of_rest && of_rest <= 1.0, "{answer}");

    let tensor = |name, datatype, data| json!({ "name": name, "datatype": datatype, "shape": [2, 1], "data": data });
    let inputs = json!({ "inputs": [
        tensor("age", "FP32", json!([22, 38])),
        tensor("fare", "FP32", json!([7.25, 171.2833])),
        tensor("city", "BYTES", json!(["Southampton", "Cherbourg"])),
    ]});
    let answer = call(&up, "/v2/models/survive/infer", &inputs).await;
    let chances = output(&answer["outputs"], "output_probability");
    assert_eq!(
        (&chances["shape"], &chances["datatype"]),
        (&json!([2, 2]), &json!("FP32"))
    );
    let of_oip = chances["data"][3].as_f64().unwrap();
    assert!((of_oip - of_rest).abs() < 1e-6, "{answer}");
}
