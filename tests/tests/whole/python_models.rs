//! Python models of users in a whole cluster: registered with the command line, called in the
//! dialects of others, crashed, and kept out where they are not allowed.

use serde_json::{Value, json};
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
