//! Pipelines: graphs of models behind one name, over real encoders and scripted generations.

use futures::StreamExt;
use serde_json::{Value, json};
use volley_tests::cluster::{Cluster, tell, tell_with};
use volley_tests::http::{exchange, post};
use volley_tests::judges::{deploy, printed, python, root};
use volley_tests::{process, until};

use crate::aliases::{fake, wait_for};
use crate::clients::Up;

const DOCUMENTS: [&str; 4] = [
    "a small brown hen",
    "Zoe lived near the old bridge",
    "the crow read a book in Rome",
    "Lee ran to the river",
];

async fn encoders(up: &Up) {
    let folder = root().join("crates/backend-onnx/tests/models");
    for name in ["text-embed", "text-rerank"] {
        let path = folder.join(name);
        let body = json!({ "name": name, "function_name": "onnx", "path": path });
        deploy(&up.client(), &body).await;
    }
    deploy(
        &up.client(),
        &json!({ "name": "words", "function_name": "text" }),
    )
    .await;
}

async fn call(up: &Up, path: &str, body: &Value) -> Value {
    let (status, answer) = exchange(&up.rest, &post(path, &body.to_string())).await;
    assert_eq!(status, 200, "{answer}");
    serde_json::from_str(&answer).unwrap()
}

/// The deltas of a chat's stream put together, and its usage.
fn streamed(events: &str) -> (String, Value, usize) {
    let events = events
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = events
        .filter(|data| *data != "[DONE]")
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    let deltas = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    let usage = events.iter().find(|event| event["usage"].is_object());
    let usage = usage.map_or(Value::Null, |event| event["usage"].clone());
    (deltas.collect(), usage, events.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_are_ranked_and_answered_from_and_usage_is_summed() {
    let up = Up::start().await;
    encoders(&up).await;
    let definition = root().join("examples/pipelines/ask.toml");
    let url = format!("http://{}", up.rest);
    let set = [
        "--url",
        &url,
        "pipeline",
        "set",
        "ask",
        &definition.to_string_lossy(),
    ];
    let (text, ok) = process::run(&set).await;
    assert!(ok && text.contains("pipeline ask is at revision"), "{text}");
    let (text, ok) = process::run(&["--url", &url, "pipeline", "list"]).await;
    assert!(
        ok && text.contains("ask") && text.contains("DEPLOYED"),
        "{text}"
    );

    let question = "Who lived near the bridge?";
    let rerank = json!({ "model": "text-rerank", "query": question, "documents": DOCUMENTS,
                         "top_n": 2, "return_documents": true });
    let ranked = call(&up, "/v1/rerank", &rerank).await;
    let best = |place: usize| {
        ranked["results"][place]["document"]["text"]
            .as_str()
            .unwrap()
    };
    let expected = format!("{question} From: {} / {} /", best(0), best(1));

    let chat = json!({
        "model": "ask", "documents": DOCUMENTS, "stream": true,
        "stream_options": { "include_usage": true },
        "messages": [{ "role": "system", "content": "be brief" },
                     { "role": "user", "content": question }],
    });
    let (status, events) =
        exchange(&up.rest, &post("/v1/chat/completions", &chat.to_string())).await;
    assert_eq!(status, 200, "{events}");
    let (text, usage, count) = streamed(&events);
    assert_eq!(text.trim_end(), expected);
    assert!(8 < count, "it streams: {count} events");
    let own = json!({ "model": "words", "prompt": expected });
    let own = call(&up, "/v1/completions", &own).await["usage"].clone();
    let tokens = |usage: &Value, name: &str| usage[name].as_u64().unwrap();
    assert_eq!(
        tokens(&usage, "prompt_tokens"),
        tokens(&own, "prompt_tokens") + tokens(&ranked["usage"], "prompt_tokens"),
    );
    assert_eq!(
        tokens(&usage, "completion_tokens"),
        tokens(&own, "completion_tokens")
    );

    // Without documents, the step that needs them says so.
    let chat = json!({ "model": "ask", "messages": chat["messages"] }).to_string();
    let (status, refused) = exchange(&up.rest, &post("/v1/chat/completions", &chat)).await;
    assert_eq!(status, 400, "{refused}");
    assert!(
        refused.contains("step 'docs'") && refused.contains("'documents'"),
        "{refused}"
    );
    let (text, ok) = process::run(&["--url", &url, "model", "delete", "words"]).await;
    assert!(!ok, "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn vectors_rank_in_the_dialect_of_rerankers_and_two_models_answers_are_merged() {
    let up = Up::start().await;
    encoders(&up).await;
    let client = up.client();
    let near = json!({ "task": "rerank", "steps": [
        { "name": "q", "model": "text-embed", "inputs": { "text": "request.query" } },
        { "name": "d", "model": "text-embed", "inputs": { "text": "request.text" } },
        { "name": "near", "similarity": { "left": "q.embedding", "right": "d.embedding" } },
    ] });
    client.put_pipeline("near", &near, Some(0)).await.unwrap();
    let body = json!({ "model": "near", "query": "hen", "documents": DOCUMENTS });
    let ranked = call(&up, "/v2/rerank", &body).await;
    let results = ranked["results"].as_array().unwrap();
    assert_eq!(results.len(), 4);
    let vectors = json!({ "model": "text-embed", "input": ["hen", DOCUMENTS[0]] });
    let vectors = call(&up, "/v1/embeddings", &vectors).await;
    let vector = |place: usize| -> Vec<f64> {
        let numbers = vectors["data"][place]["embedding"].as_array().unwrap();
        numbers
            .iter()
            .map(|number| number.as_f64().unwrap())
            .collect()
    };
    let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let (a, b) = (vector(0), vector(1));
    let cosine = dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt();
    let first = results.iter().find(|result| result["index"] == 0).unwrap();
    let score = first["relevance_score"].as_f64().unwrap();
    assert!((score - cosine).abs() < 1e-4, "{score} and {cosine}");

    // Two models' columns in one answer of tensors.
    let both = json!({ "task": "tensors", "inputs": { "text": "text" }, "steps": [
        { "name": "v", "model": "text-embed", "inputs": { "text": "request.text" } },
        { "name": "r", "model": "text-rerank",
          "inputs": { "query": "request.text", "text": "request.text" } },
        { "name": "both", "select": { "vector": "v.embedding", "self": "r.score" } },
    ] });
    client.put_pipeline("both", &both, None).await.unwrap();
    let body = json!({ "inputs": [
        { "name": "text", "datatype": "BYTES", "shape": [2], "data": ["hen", "crow"] } ] });
    let infer = call(&up, "/v2/models/both/infer", &body).await;
    let outputs = infer["outputs"].as_array().unwrap().iter();
    let names: Vec<_> = outputs
        .map(|output| output["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["self", "vector"], "{infer}");

    for (change, says) in [
        (json!({ "text": "request.nothing" }), "'request.nothing'"),
        (json!({ "txt": "request.text" }), "'txt'"),
        (json!({ "text": "d.embedding" }), "type"),
    ] {
        let mut wrong = near.clone();
        wrong["steps"][0]["inputs"] = change;
        let refused = client.put_pipeline("near", &wrong, None).await.unwrap_err();
        let refused = refused.to_string();
        assert!(
            refused.contains("step 'q'") && refused.contains(says),
            "{refused}"
        );
    }
}

/// Short prompts to one model, long ones to another, each with a word before.
fn by_length() -> Value {
    json!({ "task": "generate", "steps": [
        { "name": "long", "branch": { "when": "prompt|length > 12",
                                      "inputs": { "prompt": "request.prompt" } } },
        { "name": "short", "branch": { "otherwise": ["long"] } },
        { "name": "big", "model": "big", "over": "long", "inputs": { "prompt": "request.prompt" } },
        { "name": "small", "model": "small", "over": "short",
          "inputs": { "prompt": "request.prompt" } },
        { "name": "answer", "merge": ["big", "small"] },
    ] })
}

/// A draft of so many chunks, and an answer of so many out of it.
fn chain(drafted: u32, answered: u32) -> Value {
    let slow = |text: &str, chunks: u32| json!({ "chunks": chunks, "delay_ms": 20, "text": text });
    json!({ "task": "generate", "steps": [
        { "name": "draft", "model": "small", "inputs": { "prompt": "request.prompt" },
          "parameters": slow("d", drafted) },
        { "name": "ask", "template": { "template": "better: {{ draft }}",
                                       "inputs": { "draft": "draft.text" } } },
        { "name": "answer", "model": "big", "inputs": { "prompt": "ask.text" },
          "parameters": slow("a", answered) },
    ] })
}

async fn put(cluster: &Cluster, name: &str, body: &Value) {
    let written = cluster.client(0).put_pipeline(name, body, None).await;
    let revision = written.unwrap()["revision"].as_u64().unwrap();
    for coordinator in 0..cluster.coordinators.len() {
        wait_for(cluster, coordinator, revision).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_branch_and_stream_and_leaving_ends_every_step() {
    let cluster = Cluster::start(3, 2).await;
    for name in ["big", "small"] {
        cluster.deploy(&fake(name, json!({})), 2).await;
    }
    put(&cluster, "by-length", &by_length()).await;
    let body = json!({ "model": "by-length", "stream": false,
                       "prompt": ["short", "quite a long prompt"] });
    let request = post("/v1/completions", &body.to_string());
    let (status, answer) = exchange(&cluster.coordinators[1].http, &request).await;
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let choices = answer["choices"].as_array().unwrap().iter();
    let texts: Vec<_> = choices
        .map(|choice| choice["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts, ["smallsmall", "bigbig"]);

    // A draft, and an answer out of it; either may take longer than anybody waits.
    let (some, endless) = (40, 100_000);
    for (name, drafted, answered) in [
        ("chain", some, some),
        ("drafts", endless, some),
        ("answers", some, endless),
    ] {
        put(&cluster, name, &chain(drafted, answered)).await;
    }
    let client = cluster.client(2);
    let told = tell(&client, "chain", "x").await.unwrap();
    assert_eq!(told, "a".repeat(40));
    let running = |model: &'static str| {
        let client = client.clone();
        async move {
            let status = client.status().await.unwrap();
            let replicas = status.workers.iter().flat_map(|worker| &worker.replicas);
            let of_model = replicas.filter(|replica| replica.model == model);
            of_model.map(|replica| replica.active).sum::<u32>()
        }
    };
    let idle = || async {
        let active = running("small").await + running("big").await;
        (active == 0).then_some(())
    };
    // Left while the draft is written, and while the answer is.
    let prompt = json!({ "prompt": "x" });
    let early = tokio::spawn({
        let client = client.clone();
        let prompt = prompt.clone();
        async move { client.stream("drafts", &prompt).await.map(drop) }
    });
    until("the draft is written", || async {
        (0 < running("small").await).then_some(())
    })
    .await;
    early.abort();
    until("the draft has ended", idle).await;
    let mut late = client.stream("answers", &prompt).await.unwrap();
    late.next().await.unwrap().unwrap();
    until("the answer is written", || async {
        (0 < running("big").await).then_some(())
    })
    .await;
    drop(late);
    until("the answer has ended", idle).await;
    let within = json!({ "prompt": "x", "chunks": 2 });
    let told = tell_with(&client, "chain", &within).await.unwrap();
    assert_eq!(told, "aa", "a request's own parameters go to what answers");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_whose_worker_dies_is_named_and_new_requests_go_elsewhere() {
    let mut cluster = Cluster::start(1, 2).await;
    for name in ["small", "big"] {
        cluster.deploy(&fake(name, json!({})), 2).await;
    }
    let chain = json!({ "task": "generate", "steps": [
        { "name": "draft", "model": "small", "inputs": { "prompt": "request.prompt" },
          "parameters": { "chunks": 400, "delay_ms": 20, "text": "d" } },
        { "name": "answer", "model": "big", "inputs": { "prompt": "draft.text" } },
    ] });
    put(&cluster, "chain", &chain).await;
    let client = cluster.client(0);
    let asked: Vec<_> = (0..8)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { tell(&client, "chain", "x").await })
        })
        .collect();
    // On a busy machine one worker may look slow, and get none.
    let struck = until("a worker writes drafts, and all are written", || async {
        let status = client.status().await.ok()?;
        let drafts = |worker: &volley_client::WorkerInfo| -> u32 {
            let small = worker.replicas.iter().filter(|it| it.model == "small");
            small.map(|replica| replica.active).sum()
        };
        let all: u32 = status.workers.iter().map(drafts).sum();
        let busy = status.workers.iter().find(|worker| 0 < drafts(worker))?;
        let mut workers = cluster.workers.iter();
        let place = workers.position(|node| node.name == busy.id)?;
        (all == 8).then_some(place)
    })
    .await;
    cluster.workers[struck].kill().await;
    let (mut whole, mut broken) = (0, 0);
    for asked in asked {
        match asked.await.unwrap() {
            Ok(text) => {
                assert_eq!(text, "bigbig");
                whole += 1;
            }
            Err(error) => {
                assert!(error.to_string().contains("step 'draft'"), "{error}");
                broken += 1;
            }
        }
    }
    assert!(0 < broken, "none of 8 was on the dead worker");
    eprintln!("of 8 drafts {broken} were on the worker that died, {whole} were not");
    for _ in 0..3 {
        assert_eq!(tell(&client, "chain", "x").await.unwrap(), "bigbig");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_flow_through_a_pipeline_over_flight_as_they_come() {
    let up = Up::start().await;
    deploy(
        &up.client(),
        &json!({ "name": "words", "function_name": "text" }),
    )
    .await;
    let so = json!({ "task": "generate", "steps": [
        { "name": "so", "template": { "template": "so {{ prompt }}",
                                      "inputs": { "prompt": "request.prompt" } } },
        { "name": "answer", "model": "words", "inputs": { "prompt": "so.text" } },
    ] });
    up.client().put_pipeline("so", &so, None).await.unwrap();
    let mut client = python("venv", "get-pyarrow", "tests/python/pipelines/flight.py");
    client.args([&format!("grpc://{}", up.internal), "so"]);
    let text = printed(&mut client).await;
    let told: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(told["texts"], json!(["so one two", "so three four"]));
    assert_eq!(told["sequence_is_whole"], true);
    assert_eq!(told["listed"], true);
}
