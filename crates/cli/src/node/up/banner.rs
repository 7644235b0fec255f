//! The text that `volley up` prints when everything is ready.

use std::path::Path;

use super::Addresses;

/// The URLs, and commands to copy.
pub(super) fn greeting(at: &Addresses, data_dir: &Path, has_keys: bool) -> String {
    let Addresses {
        rest,
        internal,
        http,
        ..
    } = at;
    // An unspecified address is reachable on loopback.
    let rest = if rest.ip().is_unspecified() {
        format!("127.0.0.1:{}", rest.port())
    } else {
        rest.to_string()
    };
    let url = if rest == "127.0.0.1:8420" {
        String::new()
    } else {
        format!(" --url http://{rest}")
    };
    let data_dir = data_dir.display();
    let keys = if has_keys {
        "\nCallers need a key: -H \"authorization: Bearer $VOLLEY_API_KEY\" for curl, the variable \
         alone\nfor volley.\n"
    } else {
        ""
    };
    format!(
        r#"Volley is ready.

  REST             http://{rest}
  Arrow Flight     grpc://{internal}
  status           http://{rest}/_volley/status
  metrics          http://{rest}/metrics, of the worker http://{http}/metrics
  data             {data_dir}
{keys}
Stream a story, token by token:

  curl -N http://{rest}/_plugins/_ml/models/storyteller/_predict/stream \
    -H 'content-type: application/json' \
    -d '{{"parameters": {{"messages": [{{"role": "user", "content": "Tell me a story about a fox."}}]}}}}'

Predict on tensors:

  curl http://{rest}/_plugins/_ml/models/classifier/_predict \
    -H 'content-type: application/json' \
    -d '{{"inputs": {CLASSIFIER_INPUTS}}}'

From another terminal (target/release/volley in a source tree):

  volley{url} predict storyteller "Tell me a story about a fox."
  volley{url} status

Ctrl-C stops it.
"#
    )
}

/// A handwritten seven as input of the demo classifier: one image of 8 x 8 pixels.
const CLASSIFIER_INPUTS: &str = "{\"pixels\": [[\
[0,0,0,0,0,0,0,0],[0,1,1,1,1,1,1,0],[0,0,0,0,0,1,1,0],[0,0,0,0,1,1,0,0],\
[0,0,0,1,1,0,0,0],[0,0,0,1,0,0,0,0],[0,0,1,1,0,0,0,0],[0,0,0,0,0,0,0,0]]]}";
