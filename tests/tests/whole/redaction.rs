//! What nodes write down: no prompt, no key, and no more names of metrics than there are models.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use volley_tests::process::Process;
use volley_tests::until;

use crate::aliases::fake;
use crate::secrets::search;
use crate::tenants::{caller, guarded};

const PROMPT: &str = "canary-prompt-7f3a";

#[tokio::test(flavor = "multi_thread")]
async fn prompts_and_keys_are_written_nowhere_and_labels_stay_few() {
    let (mut cluster, admins) = guarded(3, 1).await;
    let admin = &admins[0];
    cluster
        .deploy(&json!({ "name": "words", "function_name": "text" }), 1)
        .await;
    let failing = json!({ "fail_after": 0, "fail_code": "internal" });
    cluster.deploy(&fake("failing", failing), 1).await;
    let key = json!({ "name": "app", "role": "predict", "expires_in_s": 3600 });
    let app = caller(admin, key).await;
    until("the key is known", || async {
        let who = app
            .send(&Method::GET, "/_volley/whoami", &Value::Null)
            .await;
        (who.status == StatusCode::OK).then_some(())
    })
    .await;

    let ask = async |path: &str, body: Value| app.send(&Method::POST, path, &body).await;
    let chat = |model: &str| {
        let messages = json!([{ "role": "user", "content": format!("{PROMPT} one two") }]);
        json!({ "model": model, "messages": messages })
    };
    let told = ask("/v1/chat/completions", chat("words")).await;
    assert_eq!(told.status, StatusCode::OK);
    let mut refusals = vec![
        ask("/v1/chat/completions", chat("failing")).await,
        ask("/v1/messages", chat("words")).await,
        ask(
            "/v1/chat/completions",
            json!({ "model": "words", "messages": PROMPT }),
        )
        .await,
        ask(
            "/_plugins/_ml/models/words/_predict",
            json!({ "parameters": PROMPT }),
        )
        .await,
        ask(
            "/v2/models/words/infer",
            json!({ "inputs": [{ "name": "prompt", "shape": [9],
            "datatype": "BYTES", "data": [PROMPT] }] }),
        )
        .await,
        ask(
            "/api/chat",
            json!({ "model": "words", "messages": [PROMPT] }),
        )
        .await,
    ];
    for number in 0..40 {
        refusals.push(ask("/v1/chat/completions", chat(&format!("guessed-{number}"))).await);
    }
    for refused in &refusals {
        assert!(!refused.status.is_success(), "{refused:?}");
        let body = &refused.body;
        let inside = ["panicked", ".rs:", "127.0.0.1", "/tmp", &app.key];
        let told = inside.iter().find(|told| body.contains(**told));
        assert_eq!(told, None, "{body}");
        assert!(!body.contains(PROMPT), "{body}");
    }

    for admin in &admins {
        let metrics = admin
            .send(&Method::GET, "/metrics", &Value::Null)
            .await
            .body;
        assert!(
            !metrics.contains("guessed-") && !metrics.contains(PROMPT),
            "{metrics}"
        );
    }
    let nodes = cluster.coordinators.iter().chain(&cluster.workers);
    let logged: usize = nodes
        .filter_map(|node| node.process.as_ref())
        .map(|process| Process::output(process).len())
        .sum();
    assert!(0 < logged);
    for node in cluster.coordinators.iter_mut().chain(&mut cluster.workers) {
        node.stop().await;
    }
    // The key's secret half; its id may stand in logs.
    let secret = app.key.splitn(3, '_').last().unwrap();
    for canary in [PROMPT, secret] {
        let found = search(cluster.folder(), canary);
        assert!(found.is_empty(), "{canary} stands in {found:?}");
    }
}
