//! Models of Triton's Python backend in a whole cluster: a repository is registered, and Triton's
//! own clients call its models.

use std::path::Path;

use volley_tests::judges::{python, root, steps};
use volley_tests::process;

use super::clients::Up;

const ADD_SUB: &str = r#"
import json
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """Adds and subtracts."""

    def initialize(self, args):
        config = json.loads(args["model_config"])
        outputs = (pb_utils.get_output_config_by_name(config, "OUTPUT%d" % at) for at in range(2))
        self.types = [pb_utils.triton_string_to_numpy(one["data_type"]) for one in outputs]

    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            b = pb_utils.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            if (a < 0).any():
                error = pb_utils.TritonError("INPUT0 is negative", pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(error=error))
                continue
            tensors = [pb_utils.Tensor("OUTPUT0", (a + b).astype(self.types[0])),
                       pb_utils.Tensor("OUTPUT1", (a - b).astype(self.types[1]))]
            responses.append(pb_utils.InferenceResponse(output_tensors=tensors))
        return responses
"#;

const UPPER: &str = r#"
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    async def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            upper = np.array([text.upper() for text in texts.ravel()], dtype=np.object_)
            tensor = pb_utils.Tensor("UPPER", upper.reshape(texts.shape))
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses
"#;

const REPEAT: &str = r#"
import threading
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_INT32", "dims": [-1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]})
        config.set_model_transaction_policy({"decoupled": True})
        return config

    def execute(self, requests):
        for request in requests:
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            sender = request.get_response_sender()
            threading.Thread(target=self.answer, args=(sender, values)).start()

    def answer(self, sender, values):
        for value in values:
            tensor = pb_utils.Tensor("OUT", np.array([value], np.int32))
            sender.send(pb_utils.InferenceResponse([tensor]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"#;

const ADD_SUB_CONFIG: &str = r#"
name: "add_sub"
backend: "python"
input [
  { name: "INPUT0" data_type: TYPE_FP32 dims: [ 4 ] },
  { name: "INPUT1" data_type: TYPE_FP32 dims: [ 4 ] }
]
output [
  { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 4 ] },
  { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 4 ] }
]
instance_group [ { kind: KIND_CPU } ]
"#;

const UPPER_CONFIG: &str = r#"
backend: "python"
max_batch_size: 8
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "UPPER" data_type: TYPE_STRING dims: [ 1 ] } ]
dynamic_batching { }
"#;

fn write(repository: &Path, name: &str, source: &str, config: Option<&str>) {
    let version = repository.join(name).join("1");
    std::fs::create_dir_all(&version).unwrap();
    std::fs::write(version.join("model.py"), source).unwrap();
    if let Some(config) = config {
        std::fs::write(repository.join(name).join("config.pbtxt"), config).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tritons_clients_call_the_python_models_of_a_repository() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let up = Up::with(&["--allow-python"]).await;
    let repository = up.folder.path().join("repository");
    write(&repository, "add_sub", ADD_SUB, Some(ADD_SUB_CONFIG));
    write(&repository, "upper", UPPER, Some(UPPER_CONFIG));
    write(&repository, "repeat", REPEAT, None);
    let interpreter = root().join("target/venv-triton/bin/python");
    let interpreter = format!("python={}", interpreter.display());
    let (url, path) = (format!("http://{}", up.rest), repository.to_string_lossy());
    let words = ["model", "register", "--url", &url, "--repository", &path];
    let more = ["--param", &interpreter, "--deploy", "--wait"];
    let (printed, done) = process::run(&[&words[..], &more].concat()).await;
    assert!(done, "{printed}");
    assert_eq!(
        printed.lines().next(),
        Some("add_sub:1 is registered and deployed")
    );

    for (flavor, environment, script, count) in [
        ("--http", "venv-triton", "get-triton", 4),
        ("--grpc", "venv-oip", "get-oip-clients", 5),
    ] {
        let program = "tests/python/triton/python_backend.py";
        let mut judge = python(environment, script, program);
        judge.args([flavor, &up.rest]);
        assert_eq!(steps(&mut judge).await, count, "{flavor}");
    }
}
