//! Remote models that embed and rerank.

#[path = "row_streams.rs"]
mod streams;

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, UInt32Type};
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray};
use futures::TryStreamExt;
use serde_json::{Value, json};
use volley_backend::Backend;
use volley_types::registry::{ConnectorPolicy, ConnectorSpec, ProviderName};
use volley_types::{
    Dialect, ErrorCode, Input, ModelName, ModelRef, ParamValue, PredictError, PredictRequest, Task,
};

use crate::server::{Act, Server, config, connector, head, key_file, load, serve_each};

fn column(name: &'static str, texts: &[&str]) -> (&'static str, ArrayRef) {
    (name, Arc::new(StringArray::from(texts.to_vec())))
}

async fn ask(
    model: &Arc<dyn Backend>,
    columns: Vec<(&str, ArrayRef)>,
) -> Result<Vec<RecordBatch>, PredictError> {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let reference = ModelRef::deployed(ModelName::new("m").unwrap());
    let request = PredictRequest::new(reference, Input::Batch(batch));
    model.predict(request).await?.try_collect().await
}

fn vectors(batches: &[RecordBatch]) -> Vec<Vec<f32>> {
    let rows = batches.iter().flat_map(|batch| {
        let lists = batch.column(0).as_list::<i32>();
        let rows = (0..lists.len()).map(|row| lists.value(row));
        rows.map(|row| row.as_primitive::<Float32Type>().values().to_vec())
            .collect::<Vec<_>>()
    });
    rows.collect()
}

fn tokens(batches: &[RecordBatch]) -> u32 {
    let tokens = batches.iter().map(|batch| batch.column(1));
    let tokens = tokens.map(|column| {
        column
            .as_primitive::<UInt32Type>()
            .values()
            .iter()
            .sum::<u32>()
    });
    tokens.sum()
}

fn answers(bodies: &[Value]) -> Vec<Vec<Act>> {
    let acts = bodies.iter().map(|body| {
        let bytes = [
            head("200 OK", "application/json"),
            body.to_string().into_bytes(),
        ];
        vec![Act::Send(bytes.concat())]
    });
    acts.collect()
}

fn spec(
    server: &Server,
    provider: ProviderName,
    path: &str,
    pairs: &[(&str, &str)],
) -> ConnectorSpec {
    let url = server.url.replace("/v1/chat/completions", path);
    let mut spec = connector(&url, provider);
    for (name, text) in pairs {
        let value = ParamValue::Text((*text).to_owned());
        spec.parameters.set(*name, value).unwrap();
    }
    spec
}

async fn sent(server: &mut Server) -> (String, Value) {
    let request = server.requests.recv().await.unwrap();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), serde_json::from_str(body).unwrap())
}

#[tokio::test]
async fn texts_are_embedded_several_to_a_call_and_in_their_order() {
    let body = |rows: &[(usize, f32)]| {
        let data = rows.iter().map(|(index, value)| {
            json!({ "object": "embedding", "index": index, "embedding": [value, 0.5] })
        });
        json!({ "data": data.collect::<Vec<_>>(), "usage": { "prompt_tokens": 3, "total_tokens": 3 } })
    };
    let first = body(&[(1, 2.0), (0, 1.0)]);
    let mut server = serve_each(answers(&[first, body(&[(0, 3.0)])])).await;
    let step = ("input_docs_processed_step_size", "2");
    let mut spec = spec(
        &server,
        ProviderName::from_static("openai"),
        "/v1/embeddings",
        &[step],
    );
    spec.policy.max_concurrent = Some(1);
    let model = load(spec, config()).await.unwrap();
    let reference = ModelRef::deployed(ModelName::new("m").unwrap());
    assert_eq!(model.signature(&reference).await.unwrap().task, Task::Embed);
    let given = ask(&model, vec![column("text", &["a", "b", "c"])])
        .await
        .unwrap();
    assert_eq!(vectors(&given), [[1.0, 0.5], [2.0, 0.5], [3.0, 0.5]]);
    assert_eq!(tokens(&given), 6);
    let (head, body) = sent(&mut server).await;
    assert!(head.contains("accept: application/json"), "{head}");
    assert_eq!(body, json!({ "model": "the-model", "input": ["a", "b"] }));
    assert_eq!(sent(&mut server).await.1["input"], json!(["c"]));
}

#[tokio::test]
async fn cohere_is_told_the_kind_of_text_and_ollama_nothing_but_the_texts() {
    let typed = json!({ "embeddings": { "float": [[1.0]] }, "meta": { "billed_units": { "input_tokens": 2 } } });
    let mut server = serve_each(answers(&[typed])).await;
    let cohere = spec(
        &server,
        ProviderName::from_static("cohere"),
        "/v2/embed",
        &[],
    );
    let model = load(cohere, config()).await.unwrap();
    let columns = vec![column("text", &["a"]), column("input_type", &["query"])];
    let given = ask(&model, columns).await.unwrap();
    assert_eq!((vectors(&given), tokens(&given)), (vec![vec![1.0]], 2));
    let expected = json!({
        "model": "the-model", "texts": ["a"], "input_type": "search_query", "embedding_types": ["float"],
    });
    assert_eq!(sent(&mut server).await.1, expected);

    let list = json!({ "embeddings": [[1.0]], "prompt_eval_count": 4 });
    let mut server = serve_each(answers(&[list])).await;
    let ollama = spec(
        &server,
        ProviderName::from_static("ollama"),
        "/api/embed",
        &[],
    );
    let model = load(ollama, config()).await.unwrap();
    let given = ask(&model, vec![column("text", &["a"])]).await.unwrap();
    assert_eq!(tokens(&given), 4);
    assert_eq!(
        sent(&mut server).await.1,
        json!({ "model": "the-model", "input": ["a"] })
    );
}

/// Sends texts with parameters in a dialect.
async fn ask_with(
    model: &Arc<dyn Backend>,
    columns: Vec<(&str, ArrayRef)>,
    dialect: Dialect,
    parameters: &[(&str, ParamValue)],
) -> Result<Vec<RecordBatch>, PredictError> {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let reference = ModelRef::deployed(ModelName::new("m").unwrap());
    let mut request = PredictRequest::new(reference, Input::Batch(batch));
    request.dialect = dialect;
    for (name, value) in parameters {
        request.parameters.set(*name, value.clone()).unwrap();
    }
    model.predict(request).await?.try_collect().await
}

#[tokio::test]
async fn token_ids_are_sent_as_ids_or_refused_and_never_embedded_as_text() {
    let ids = || vec![column("text", &["[1,2,3]", "[4]"])];
    let flag = [("token_inputs", ParamValue::Bool(true))];
    let body = json!({ "data": [
        { "index": 0, "embedding": [1.0] }, { "index": 1, "embedding": [2.0] } ] });
    let mut server = serve_each(answers(&[body])).await;
    let openai = ProviderName::from_static("openai");
    let model = load(spec(&server, openai, "/v1/embeddings", &[]), config()).await;
    let model = model.unwrap();
    let given = ask_with(&model, ids(), Dialect::OpenAi, &flag).await;
    assert_eq!(vectors(&given.unwrap()), [[1.0], [2.0]]);
    let expected = json!({ "model": "the-model", "input": [[1, 2, 3], [4]] });
    assert_eq!(sent(&mut server).await.1, expected);
    let words = vec![column("text", &["a word"])];
    let wrong = ask_with(&model, words, Dialect::OpenAi, &flag).await;
    assert!(wrong.unwrap_err().message.contains("'token_inputs'"));

    for (provider, path) in [
        ("cohere", "/v2/embed"),
        ("ollama", "/api/embed"),
        ("bedrock", "/model/amazon.titan-embed-text-v2:0/invoke"),
        ("gemini", "/v1beta/models/e:batchEmbedContents"),
    ] {
        let server = serve_each(Vec::new()).await;
        let spec = spec(&server, ProviderName::from_static(provider), path, &[]);
        let model = load(spec, config()).await.unwrap();
        let error = ask_with(&model, ids(), Dialect::OpenAi, &flag).await;
        let error = error.unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidInput, "{provider}");
        assert!(error.message.contains("'input'"), "{provider}: {error:?}");
    }
}

/// A model in front of a server that answers once.
async fn once(provider: &'static str, path: &str, answer: Value) -> (Server, Arc<dyn Backend>) {
    let server = serve_each(answers(&[answer])).await;
    let spec = spec(&server, ProviderName::from_static(provider), path, &[]);
    let model = load(spec, config()).await.unwrap();
    (server, model)
}

#[tokio::test]
async fn a_kind_of_text_is_sent_or_refused() {
    let columns = || vec![column("text", &["a"]), column("input_type", &["query"])];
    let body = json!({ "data": [{ "index": 0, "embedding": [1.0] }] });
    let (mut server, model) = once("openai", "/v1/embeddings", body).await;
    ask(&model, columns()).await.unwrap();
    let expected = json!({ "model": "the-model", "input": ["a"], "input_type": "query" });
    assert_eq!(sent(&mut server).await.1, expected);
    let list = json!({ "embeddings": [[1.0]] });
    let (_server, model) = once("ollama", "/api/embed", list).await;
    let error = ask(&model, columns()).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    assert!(error.message.contains("'input_type'"), "{error:?}");
}

#[tokio::test]
async fn text_embeddings_inference_embeds_and_ranks_in_its_own_format() {
    let (mut server, model) = once("tgi", "/embed", json!([[1.0]])).await;
    let parameters = [
        ("truncate", ParamValue::Bool(true)),
        ("normalize", ParamValue::Bool(false)),
    ];
    let columns = vec![column("text", &["a"]), column("input_type", &["query"])];
    let given = ask_with(&model, columns, Dialect::OpenAi, &parameters).await;
    assert_eq!(vectors(&given.unwrap()), [[1.0]]);
    let expected = json!({ "model": "the-model", "inputs": ["a"], "prompt_name": "query",
                           "truncate": true, "normalize": false });
    assert_eq!(sent(&mut server).await.1, expected);

    let scores = json!([{ "index": 1, "score": 0.9 }, { "index": 0, "score": 0.1 }]);
    let (mut server, model) = once("tgi", "/rerank", scores).await;
    let parameters = [("raw_scores", ParamValue::Bool(true))];
    let columns = vec![column("query", &["q", "q"]), column("text", &["a", "b"])];
    let given = ask_with(&model, columns, Dialect::OpenAi, &parameters).await;
    let given = given.unwrap();
    let scores = given[0].column(0).as_primitive::<Float32Type>();
    assert_eq!(scores.values(), &[0.1, 0.9]);
    let expected = json!({ "model": "the-model", "query": "q", "texts": ["a", "b"],
                           "raw_scores": true });
    assert_eq!(sent(&mut server).await.1, expected);
}

#[tokio::test]
async fn details_tell_what_the_server_said_and_what_it_did_not_say() {
    let ranked = json!({ "results": [{ "index": 0, "relevance_score": 0.5 }],
                         "meta": { "billed_units": { "search_units": 1 } } });
    let flag = [("row_details", ParamValue::Bool(true))];
    let columns = || vec![column("query", &["q"]), column("text", &["a"])];
    let (mut server, model) = once("cohere", "/v2/rerank", ranked.clone()).await;
    let given = ask_with(&model, columns(), Dialect::Cohere, &flag).await;
    let given = given.unwrap();
    assert!(given[0].column(1).is_null(0), "no count is unknown");
    let told = given[0]
        .column_by_name("upstream")
        .unwrap()
        .as_string::<i32>();
    let told: Value = serde_json::from_str(told.value(0)).unwrap();
    assert_eq!(told["format"], "cohere");
    assert_eq!(told["fields"]["meta"], ranked["meta"]);
    assert_eq!(sent(&mut server).await.1.get("row_details"), None);
    // Who does not ask, such as an older node, receives the same columns as before.
    let (_server, model) = once("cohere", "/v2/rerank", ranked).await;
    let given = ask(&model, columns()).await.unwrap();
    assert_eq!((given[0].num_columns(), tokens(&given)), (2, 0));
}

#[tokio::test]
async fn a_template_that_does_not_use_a_parameter_refuses_it() {
    let server = serve_each(Vec::new()).await;
    let pre = (
        "pre_process_function",
        "connector.pre_process.default.embedding",
    );
    let mut own = spec(&server, ProviderName::from_static("http"), "/embed", &[pre]);
    own.request_body = Some(r#"{"inputs": ${parameters.input}}"#.to_owned());
    let model = load(own, config()).await.unwrap();
    let given = [("dimensions", ParamValue::Int(2))];
    let columns = vec![column("text", &["a"])];
    let error = ask_with(&model, columns, Dialect::OpenAi, &given).await;
    let error = error.unwrap_err();
    assert!(error.message.contains("'dimensions'"), "{error:?}");
}

#[tokio::test]
async fn a_titan_model_embeds_one_text_for_each_signed_call() {
    let body = |value: f32| json!({ "embedding": [value], "inputTextTokenCount": 2 });
    let mut server = serve_each(answers(&[body(1.0), body(2.0)])).await;
    let path = "/model/amazon.titan-embed-text-v2:0/invoke";
    let mut spec = spec(&server, ProviderName::from_static("bedrock"), path, &[]);
    spec.policy.max_concurrent = Some(1);
    spec.credential = Some(key_file("AKID:canary"));
    let model = load(spec, config()).await.unwrap();
    let given = ask(&model, vec![column("text", &["a", "b"])])
        .await
        .unwrap();
    assert_eq!(
        (vectors(&given), tokens(&given)),
        (vec![vec![1.0], vec![2.0]], 4)
    );
    let (head, body) = sent(&mut server).await;
    assert!(
        head.contains("authorization: AWS4-HMAC-SHA256 Credential=AKID/"),
        "{head}"
    );
    assert_eq!(body, json!({ "inputText": "a" }));
}

#[tokio::test]
async fn documents_are_scored_against_their_query() {
    let body = json!({ "results": [
        { "index": 1, "relevance_score": 0.9 }, { "index": 0, "relevance_score": 0.1 } ] });
    let mut server = serve_each(answers(&[body])).await;
    let spec = spec(
        &server,
        ProviderName::from_static("openai"),
        "/v1/rerank",
        &[],
    );
    let model = load(spec, config()).await.unwrap();
    let columns = vec![column("query", &["q", "q"]), column("text", &["a", "b"])];
    let given = ask(&model, columns).await.unwrap();
    let scores = given[0].column(0).as_primitive::<Float32Type>();
    assert_eq!(scores.values(), &[0.1, 0.9]);
    let expected =
        json!({ "model": "the-model", "query": "q", "documents": ["a", "b"], "top_n": 2 });
    assert_eq!(sent(&mut server).await.1, expected);
}

#[tokio::test]
async fn opensearchs_functions_and_a_template_describe_any_server() {
    let mut server = serve_each(answers(&[json!([[1.0], [2.0]])])).await;
    let names = [
        (
            "pre_process_function",
            "connector.pre_process.default.embedding",
        ),
        (
            "post_process_function",
            "connector.post_process.default.embedding",
        ),
    ];
    let mut own = spec(&server, ProviderName::from_static("http"), "/embed", &names);
    own.request_body = Some(r#"{"inputs": ${parameters.input}, "truncate": true}"#.to_owned());
    let model = load(own, config()).await.unwrap();
    let given = ask(&model, vec![column("text", &["a", "b"])])
        .await
        .unwrap();
    assert_eq!(vectors(&given), [[1.0], [2.0]]);
    let body = sent(&mut server).await.1;
    assert_eq!(body, json!({ "inputs": ["a", "b"], "truncate": true }));

    for (name, value, says) in [
        ("post_process_function", "return doc;", "openai.embedding"),
        (
            "pre_process_function",
            "connector.pre_process.cohere.multimodal_embedding",
            "supported names are",
        ),
        (
            "post_process_function",
            "connector.post_process.cohere.rerank",
            "",
        ),
    ] {
        let path = "/v1/chat/completions";
        let spec = spec(
            &server,
            ProviderName::from_static("openai"),
            path,
            &[(name, value)],
        );
        let loaded = load(spec, config()).await.map(|_| ());
        match loaded {
            Err(error) => {
                assert_eq!(error.code, ErrorCode::InvalidInput);
                assert!(
                    !says.is_empty() && error.message.contains(says),
                    "{error:?}"
                );
            }
            Ok(()) => assert!(says.is_empty(), "one function tells the other"),
        }
    }
}

#[tokio::test]
async fn a_server_that_limits_is_asked_again_and_half_an_answer_is_none() {
    let limited = head(
        "429 Too Many Requests\r\nretry-after: 0",
        "application/json",
    );
    let good = json!({ "data": [{ "index": 0, "embedding": [1.0] }] });
    let mut scripts = vec![vec![Act::Send(limited)]];
    scripts.extend(answers(&[good.clone(), good]));
    let server = serve_each(scripts).await;
    let mut spec = spec(
        &server,
        ProviderName::from_static("openai"),
        "/v1/embeddings",
        &[],
    );
    spec.policy = ConnectorPolicy::default();
    let model = load(spec, config()).await.unwrap();
    let given = ask(&model, vec![column("text", &["a"])]).await.unwrap();
    assert_eq!(vectors(&given), [[1.0]]);
    let error = ask(&model, vec![column("text", &["a", "b"])])
        .await
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::UpstreamFailed);
    let wrong = ask(&model, vec![column("prompt", &["a"])])
        .await
        .unwrap_err();
    assert_eq!(wrong.code, ErrorCode::InvalidInput);
}

#[tokio::test]
async fn google_embeds_by_each_of_its_methods() {
    let batch = json!({ "embeddings": [{ "values": [1.0] }, { "values": [2.0] }] });
    let mut server = serve_each(answers(&[batch])).await;
    let path = "/v1beta/models/gemini-e:batchEmbedContents";
    let model = load(
        spec(&server, ProviderName::from_static("gemini"), path, &[]),
        config(),
    );
    let model = model.await.unwrap();
    let given = ask(&model, vec![column("text", &["a", "b"])])
        .await
        .unwrap();
    assert_eq!(vectors(&given), [[1.0], [2.0]]);
    let (head, body) = sent(&mut server).await;
    assert!(head.starts_with(&format!("POST {path} HTTP")), "{head}");
    assert_eq!(body["requests"][1]["content"]["parts"][0]["text"], "b");
    assert_eq!(body["requests"][1]["model"], "models/the-model");

    let one = |value: f32| json!({ "embedding": { "values": [value] }, "usageMetadata": { "promptTokenCount": 2 } });
    let mut server = serve_each(answers(&[one(1.0), one(2.0)])).await;
    let path = "/v1beta/models/gemini-e:embedContent";
    let mut single = spec(&server, ProviderName::from_static("gemini"), path, &[]);
    single.policy.max_concurrent = Some(1);
    let model = load(single, config()).await.unwrap();
    let columns = vec![
        column("text", &["a", "b"]),
        column("input_type", &["query", "query"]),
    ];
    let given = ask(&model, columns).await.unwrap();
    assert_eq!(
        (vectors(&given), tokens(&given)),
        (vec![vec![1.0], vec![2.0]], 4)
    );
    assert_eq!(sent(&mut server).await.1["taskType"], "RETRIEVAL_QUERY");

    let predicted = json!({ "predictions": [
        { "embeddings": { "values": [1.0], "statistics": { "token_count": 3 } } },
        { "embeddings": { "values": [2.0], "statistics": { "token_count": 4 } } } ] });
    let mut server = serve_each(answers(&[predicted])).await;
    let path = "/v1/projects/p/locations/l/publishers/google/models/text-e:predict";
    let model = load(
        spec(
            &server,
            ProviderName::from_static("vertex"),
            path,
            &[("dimensions", "1")],
        ),
        config(),
    );
    let model = model.await.unwrap();
    let given = ask(&model, vec![column("text", &["a", "b"])])
        .await
        .unwrap();
    assert_eq!(
        (vectors(&given), tokens(&given)),
        (vec![vec![1.0], vec![2.0]], 7)
    );
    let body = sent(&mut server).await.1;
    assert_eq!(body["instances"][0], json!({ "content": "a" }));
    assert_eq!(body["parameters"]["outputDimensionality"], 1);
}
