//! Python models of users in a whole cluster: registered with the command line, called in the
//! dialects of others, crashed, and kept out where they are not allowed.

use serde_json::{Value, json};
use volley_tests::cluster::Cluster;
use volley_tests::judges::{nothing_runs, python, root, steps};
use volley_tests::process::{Process, free_port};
use volley_tests::{process, until};

use super::clients::Up;

const SHOUT: &str = r#"
class Model:
    """Repeats a prompt in upper case, word by word."""

    def __init__(self, mark: str = "!"):
        self.mark = mark

    def generate(self, prompt: str, limit: int = 100):
        for word in prompt.split()[:limit]:
            if word == "crash":
                import os
                os._exit(9)
            yield word.upper() + self.mark + " "
"#;

const SURVIVE: &str = r#"
def predict(age: int, fare: float, city: str) -> float:
    return 1.0 if fare > 50 and city == "Cherbourg" else 0.0
"#;

/// Writes a model into the cluster's folder, and registers and deploys it.
async fn register(up: &Up, name: &str, source: &str, more: &[&str]) -> (String, bool) {
    let directory = up.folder.path().join(name);
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("model.py"), source).unwrap();
    let (url, path) = (format!("http://{}", up.rest), directory.to_string_lossy());
    let mut words = vec![
        "model",
        "register",
        name,
        "--url",
        &url,
        "--backend",
        "python",
    ];
    words.extend(["--path", &path, "--deploy", "--wait"]);
    words.extend(more);
    process::run(&words).await
}

async fn post(up: &Up, path: &str, body: &Value) -> (u16, String) {
    let url = format!("http://{}{path}", up.rest);
    let reply = reqwest::Client::new().post(url).json(body).send().await;
    let reply = reply.unwrap();
    (reply.status().as_u16(), reply.text().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_class_is_called_in_every_dialect_and_survives_its_own_crash() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let up = Up::with(&["--allow-python"]).await;
    let (printed, done) = register(&up, "shout", SHOUT, &["--param", "mark=?"]).await;
    assert!(done, "{printed}");

    let (status, text) = post(
        &up,
        "/v1/completions",
        &json!({ "model": "shout", "prompt": "good morning", "limit": 1 }),
    )
    .await;
    assert_eq!(status, 200, "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["choices"][0]["text"], "GOOD? ");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");

    let body = json!({ "model": "shout", "prompt": "good morning", "stream": true });
    let (status, text) = post(&up, "/v1/completions", &body).await;
    assert_eq!(status, 200, "{text}");
    assert!(
        text.contains("GOOD? ") && text.contains("MORNING? "),
        "{text}"
    );
    assert!(text.trim_end().ends_with("data: [DONE]"), "{text}");

    let body = json!({ "text_input": "good morning" });
    let (status, text) = post(&up, "/v2/models/shout/generate_stream", &body).await;
    assert!(status == 200 && text.contains("MORNING? "), "{text}");

    let chat = json!({ "model": "shout", "messages": [{ "role": "user", "content": "Hi" }] });
    let (status, text) = post(&up, "/v1/chat/completions", &chat).await;
    assert!(
        (400..500).contains(&status) && text.contains("messages"),
        "{status} {text}"
    );
    let wrong = json!({ "model": "shout", "prompt": "x", "limit": "many" });
    let (status, text) = post(&up, "/v1/completions", &wrong).await;
    assert!(status == 400 && text.contains("limit"), "{status} {text}");

    let crash = json!({ "model": "shout", "prompt": "crash" });
    let (status, text) = post(&up, "/v1/completions", &crash).await;
    assert!(500 <= status && text.contains("code 9"), "{status} {text}");
    until("the model's process is back", async || {
        let body = json!({ "model": "shout", "prompt": "back" });
        let (status, _) = post(&up, "/v1/completions", &body).await;
        (status == 200).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_python_function_over_columns_is_a_model_of_tensors() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let up = Up::with(&["--allow-python"]).await;
    let (printed, done) = register(&up, "survive", SURVIVE, &[]).await;
    assert!(done, "{printed}");
    let inputs = json!({ "age": [66, 44], "fare": [14.4, 108.3], "city": ["Rome", "Cherbourg"] });
    let path = "/_plugins/_ml/models/survive/_predict";
    let (status, text) = post(&up, path, &json!({ "inputs": inputs })).await;
    assert_eq!(status, 200, "{text}");
    let answer: Value = serde_json::from_str(&text).unwrap();
    let output = &answer["inference_results"][0]["output"][0];
    assert_eq!(output["data"], json!([0.0, 1.0]), "{text}");

    let path = up.folder.path().join("survive");
    let inspect = ["model", "inspect", &path.to_string_lossy()];
    let (printed, done) = process::run(&inspect).await;
    assert!(
        done && printed.contains("plain") && printed.contains("city"),
        "{printed}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn python_models_are_off_until_an_operator_allows_them() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let up = Up::start().await;
    let (printed, done) = register(&up, "shout", SHOUT, &[]).await;
    assert!(!done, "{printed}");
    assert!(printed.contains("--allow-python"), "{printed}");
}

/// Streams an event for each word.
const WORDS: &str = r#"
from typing import Iterator, TypedDict


class Token(TypedDict):
    token: str
    score: float


def stream(prompt: str) -> Iterator[Token]:
    """Splits a prompt into words with scores."""
    if prompt.startswith("fail"):
        raise ValueError("no failures here")
    for number, word in enumerate(prompt.split()):
        yield {"token": word, "score": number / 2}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_columns_reaches_the_clients_of_others_event_by_event() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let up = Up::with(&["--allow-python"]).await;
    let (printed, done) = register(&up, "words", WORDS, &[]).await;
    assert!(done, "{printed}");

    for (environment, script, flavor, address, count) in [
        ("venv-oip", "get-oip-clients", "--triton", &up.rest, 4),
        ("venv", "get-pyarrow", "--flight", &up.internal, 2),
    ] {
        let mut client = python(environment, script, "examples/sdks/column_events.py");
        client.args([flavor, address, "--model", "words"]);
        assert_eq!(steps(&mut client).await, count, "{flavor}");
    }

    let flat = json!({ "prompt": "good morning" });
    let (status, text) = post(&up, "/v2/models/words/generate_stream", &flat).await;
    let events: Vec<Value> = events_of(&text);
    assert_eq!(status, 200, "{text}");
    let tokens: Vec<_> = events.iter().map(|event| &event["token"]).collect();
    assert_eq!(tokens, ["good", "morning"], "{text}");
    assert_eq!(events[1]["score"], 0.5, "{text}");

    let body = json!({ "inputs": { "prompt": ["good morning"] } });
    let path = "/_plugins/_ml/models/words/_predict";
    let (status, text) = post(&up, &format!("{path}/stream"), &body).await;
    let events: Vec<Value> = events_of(&text);
    assert_eq!((status, events.len()), (200, 2), "{text}");
    let output = &events[1]["inference_results"][0]["output"][0];
    assert_eq!(output["data"], json!(["morning"]), "{text}");
    let (status, text) = post(&up, path, &body).await;
    assert!(
        status == 400 && text.contains("_predict/stream"),
        "{status} {text}"
    );

    let chat = json!({ "model": "words", "messages": [{ "role": "user", "content": "Hi" }] });
    let (status, text) = post(&up, "/v1/chat/completions", &chat).await;
    assert!(
        status == 400 && text.contains("has the task 'events'"),
        "{status} {text}"
    );
    nothing_runs(&up.rest, "words").await;
}

/// The data of server-sent events.
fn events_of(text: &str) -> Vec<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

/// The text model of MLServer's documentation on streams, without its pauses.
const TEXT_MODEL: &str = r#"
from typing import AsyncIterator

from mlserver import MLModel
from mlserver.codecs import StringCodec
from mlserver.types import InferenceRequest, InferenceResponse


class TextModel(MLModel):
    async def predict_stream(
        self, payloads: AsyncIterator[InferenceRequest]
    ) -> AsyncIterator[InferenceResponse]:
        payload = [_ async for _ in payloads][0]
        words = StringCodec.decode_input(payload.inputs[0])[0].split(" ")
        for number, word in enumerate(words):
            yield InferenceResponse(
                model_name=self.settings.name,
                outputs=[
                    StringCodec.encode_output(
                        name="output",
                        payload=[word if number == 0 else " " + word],
                        use_bytes=True,
                    )
                ],
            )
"#;

#[tokio::test(flavor = "multi_thread")]
async fn mlservers_documented_text_model_runs_with_its_own_clients() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let grpc = free_port().to_string();
    let up = Up::with(&["--allow-python", "--grpc-mlserver-port", &grpc]).await;
    let directory = up.folder.path().join("text-model");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("text_model.py"), TEXT_MODEL).unwrap();
    let settings = json!({
        "name": "text-model",
        "implementation": "text_model.TextModel",
        "inputs": [{ "name": "prompt", "datatype": "BYTES", "shape": [1] }],
        "outputs": [{ "name": "output", "datatype": "BYTES", "shape": [1] }],
    });
    let settings_file = directory.join("model-settings.json");
    std::fs::write(settings_file, settings.to_string()).unwrap();
    let interpreter = root().join("target/venv-mlserver/bin/python");
    let (url, path) = (format!("http://{}", up.rest), directory.to_string_lossy());
    let interpreter = format!("python={}", interpreter.display());
    let words = [
        "model",
        "register",
        "text-model",
        "--url",
        &url,
        "--backend",
        "python",
        "--path",
        &path,
        "--param",
        &interpreter,
        "--deploy",
        "--wait",
    ];
    let (printed, done) = process::run(&words).await;
    assert!(done, "{printed}");

    let mut client = python(
        "venv-mlserver",
        "get-oip-clients",
        "examples/sdks/column_events.py",
    );
    let grpc = format!("127.0.0.1:{grpc}");
    client.args(["--mlserver", &up.rest, "--grpc", &grpc]);
    client.args(["--model", "text-model"]);
    assert_eq!(steps(&mut client).await, 4);
    nothing_runs(&up.rest, "text-model").await;
}

const ROUTED: &str = r#"
from typing import Iterator


class Model:
    """Counts up, on a route of its own."""

    route = "/generate-stream"
    outputs = [{"name": "token", "type": "utf8"}, {"name": "number", "type": "int64"}]

    def stream(self, prompt: str, count: int = 2, *, mark: str = "") -> Iterator[dict]:
        if not prompt:
            raise ValueError("the prompt is empty")
        for number in range(count):
            yield {"token": prompt + mark, "number": number}
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_model_answers_programs_and_browsers_on_a_route_of_its_own() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let up = Up::with(&["--allow-python"]).await;
    let (printed, done) = register(&up, "team/counter", ROUTED, &[]).await;
    assert!(done, "{printed}");
    let expected = "data: {\"token\":\"a b!\",\"number\":0}\n\n\
                    data: {\"token\":\"a b!\",\"number\":1}\n\ndata: [DONE]\n\n";

    let path = "/models/team/counter/generate-stream";
    let body = json!({ "prompt": "a b", "count": 2, "mark": "!" });
    assert_eq!(post(&up, path, &body).await, (200, expected.to_owned()));

    let get = async |query: &str, headers: &[(&str, &str)]| {
        let url = format!("http://{}{path}?{query}", up.rest);
        let request = reqwest::Client::new().get(url);
        let request = headers.iter().fold(request, |request, (name, value)| {
            request.header(*name, *value)
        });
        let reply = request.send().await.unwrap();
        (reply.status().as_u16(), reply.text().await.unwrap())
    };
    // As a browser's EventSource sends it from a page of this server.
    let own = [
        ("accept", "text/event-stream"),
        ("sec-fetch-site", "same-origin"),
    ];
    let found = get("prompt=a+b&count=2&mark=!", &own).await;
    assert_eq!(found, (200, expected.to_owned()));
    // No page of another site may run the model, although a GET changes nothing elsewhere.
    for foreign in [
        ("sec-fetch-site", "cross-site"),
        ("origin", "https://evil.example"),
    ] {
        let (status, text) = get("prompt=a", &[foreign]).await;
        assert_eq!(status, 403, "{text}");
    }
    for (query, status, message) in [
        ("prompt=", 400, "the prompt is empty"),
        ("count=2", 400, "needs the input 'prompt'"),
        ("prompt=a&count=many", 400, "count"),
        ("prompt=a&marc=!", 400, "did you mean 'mark'?"),
    ] {
        let found = get(query, &[]).await;
        assert!(found.0 == status && found.1.contains(message), "{found:?}");
    }
    let (status, text) = post(&up, "/models/team/counter/other", &body).await;
    assert!(
        status == 404 && text.contains("declares no route"),
        "{text}"
    );
}

/// Answers with its process; a crashed one is not back before a file `release` exists.
const TWINS: &str = r#"
import os, time

class Model:
    def __init__(self):
        here = os.path.dirname(__file__)
        if len([name for name in os.listdir(here) if name.startswith("load")]) >= 2:
            while not os.path.exists(os.path.join(here, "release")):
                time.sleep(0.01)
        open(os.path.join(here, "load.%d" % os.getpid()), "w").close()

    def generate(self, prompt: str):
        if prompt == "crash":
            os._exit(9)
        yield str(os.getpid())
"#;

#[tokio::test(flavor = "multi_thread")]
async fn another_replica_takes_over_while_a_crashed_process_is_started_again() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut cluster = Cluster::new(1, 2);
    for worker in &cluster.workers {
        let text = std::fs::read_to_string(&worker.config).unwrap();
        let environments = cluster.folder().join(&worker.name).join("python");
        let python = format!("\n[python]\nenabled = true\nenvironments_dir = {environments:?}\n");
        std::fs::write(&worker.config, text + &python).unwrap();
    }
    let directory = cluster.folder().join("twins");
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("model.py"), TWINS).unwrap();
    cluster.run().await;
    let (url, path) = (
        format!("http://{}", cluster.coordinators[0].http),
        directory.to_string_lossy(),
    );
    let register = ["model", "register", "twins", "--url", &url];
    let register = [&register[..], &["--backend", "python", "--path", &path]].concat();
    let (printed, done) = process::run(&register).await;
    assert!(done, "{printed}");
    let deploy = ["model", "deploy", "twins", "--url", &url];
    let deploy = [&deploy[..], &["--replicas", "2", "--wait"]].concat();
    let (printed, done) = process::run(&deploy).await;
    assert!(done, "{printed}");

    let ask = async |prompt: &str| {
        let body = json!({ "model": "twins", "prompt": prompt });
        let reply = reqwest::Client::new()
            .post(format!("{url}/v1/completions"))
            .json(&body)
            .send();
        let reply = reply.await.unwrap();
        (reply.status().as_u16(), reply.text().await.unwrap())
    };
    let (status, text) = ask("crash").await;
    assert!(500 <= status && text.contains("code 9"), "{status} {text}");
    for _ in 0..20 {
        let (status, text) = ask("go").await;
        assert_eq!(status, 200, "{text}");
    }
    std::fs::write(directory.join("release"), "now").unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_development_mode_reloads_on_save_and_prints_requests() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shout.py");
    std::fs::write(&file, SHOUT).unwrap();
    let path = file.to_string_lossy();
    let dev = Process::start("dev", &["dev", &path, "--port", "0"], folder.path());
    let prints = async |text: &str| {
        until(&format!("it prints {text}"), async || {
            let printed = dev.output();
            printed.contains(text).then_some(printed)
        })
        .await
    };
    let printed = prints("shout:1 serves at").await;
    let (_, url) = printed.split_once("serves at ").unwrap();
    let url = url.split(';').next().unwrap().to_owned();
    let ask = async || {
        let body = json!({ "model": "shout", "prompt": "good morning" });
        let client = reqwest::Client::new();
        let reply = client
            .post(format!("{url}/v1/completions"))
            .json(&body)
            .send();
        let answer: Value = reply.await.unwrap().json().await.unwrap();
        answer["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    assert_eq!(ask().await, "GOOD! MORNING! ");
    prints("prompt=good morning").await;
    prints("ms GOOD! MORNING!").await;

    std::fs::write(
        &file,
        SHOUT.replace("mark: str = \"!\"", "mark: str = \"?\""),
    )
    .unwrap();
    prints("shout:2 serves at").await;
    until("the new version answers", async || {
        (ask().await == "GOOD? MORNING? ").then_some(())
    })
    .await;

    std::fs::write(&file, "def generate(prompt: str:\n").unwrap();
    prints("shout:2 goes on").await;
    assert!(dev.output().contains("error: "), "{}", dev.output());
    assert_eq!(ask().await, "GOOD? MORNING? ");
}
