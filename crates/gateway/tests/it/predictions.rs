//! `_predict`: parsed bodies, responses and rejected requests.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_schema::{DataType, Field, Schema};
use http::Method;
use proptest::prelude::*;
use serde_json::{Value, json};
use volley_types::{
    ErrorCode, FinishReason, GenerationChunk, ParamValue, PredictError, Signature, Task, Usage,
};

use super::support::{Edge, Script, last, request, text};

const PREDICT: &str = "/_plugins/_ml/models/m/_predict";

fn finished() -> GenerationChunk {
    GenerationChunk {
        finish_reason: Some(FinishReason::Stop),
        usage: Some(Usage {
            prompt_tokens: 2,
            completion_tokens: 3,
            ..Usage::default()
        }),
        ..last()
    }
}

#[tokio::test]
async fn a_generation_comes_whole() {
    let edge = Edge::start().await;
    edge.cluster.script(
        "m",
        Script::Chunks(vec![text("Once "), text("upon"), finished()]),
    );
    let body = edge
        .post(PREDICT, r#"{"parameters":{"prompt":"tell"}}"#)
        .await
        .ok();
    let result = &body["inference_results"][0];
    assert_eq!(result["status_code"], 200);
    assert_eq!(
        result["output"],
        json!([{
            "name": "response",
            "dataAsMap": {
                "response": "Once upon",
                "finish_reason": "stop",
                "usage": { "prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5 },
            },
        }])
    );
}

#[tokio::test]
async fn a_whole_answer_has_the_form_of_the_interface_that_is_named() {
    let edge = Edge::start().await;
    edge.cluster
        .script("m", Script::Chunks(vec![text("Once"), finished()]));
    let told = async |interface: &str| {
        let body = json!({ "parameters": { "prompt": "tell", "_llm_interface": interface } });
        let body = edge.post(PREDICT, &body.to_string()).await.ok();
        body["inference_results"][0]["output"][0]["dataAsMap"].clone()
    };
    let openai = told("openai/v1/chat/completions").await;
    assert_eq!(openai["choices"][0]["message"]["content"], "Once");
    assert_eq!(openai["response"], "Once");
    let converse = told("bedrock/converse").await;
    assert_eq!(
        converse["output"]["message"]["content"],
        json!([{ "text": "Once" }])
    );
    assert_eq!(converse["usage"]["inputTokens"], 2);
    let gemini = told("gemini/v1beta/generatecontent").await;
    let parts = &gemini["candidates"][0]["content"]["parts"];
    assert_eq!(parts, &json!([{ "text": "Once" }]));
}

#[tokio::test]
async fn what_the_caller_sent_reaches_the_model() {
    let edge = Edge::start().await;
    edge.cluster.script("m", Script::Chunks(vec![last()]));
    let body = json!({ "parameters": {
        "prompt": "hi",
        "temperature": 0.5,
        "max_tokens": "16",
        "top_k": 4,
        "stop": ["a"],
        "stream": "true",
        "_llm_interface": "openai/v1/chat/completions",
    }});
    let mut sent = request(
        Method::POST,
        "/_plugins/_ml/models/m:1/_predict",
        &body.to_string(),
    );
    let headers = sent.headers_mut();
    headers.insert("x-request-id", "story-7".parse().unwrap());
    headers.insert("x-volley-timeout-ms", "60000".parse().unwrap());
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    headers.insert("traceparent", trace.parse().unwrap());
    edge.send(sent).await.ok();
    let call = edge.cluster.last_call();
    assert_eq!(call.model.to_string(), "m:1");
    assert_eq!(call.request_id.as_str(), "story-7");
    assert_eq!(
        call.trace.trace_id,
        0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c
    );
    assert_ne!(
        call.trace.span_id, 0xb7ad_6b71_6920_3331,
        "this hop has a span of its own"
    );
    assert!(call.remaining <= Duration::from_secs(60) && Duration::from_secs(30) < call.remaining);
    assert_eq!(
        call.rows
            .column_by_name("prompt")
            .unwrap()
            .as_string::<i32>()
            .value(0),
        "hi"
    );
    let parameters: Vec<_> = call.parameters.iter().collect();
    assert_eq!(
        parameters,
        [
            ("max_tokens", &ParamValue::Text("16".to_owned())),
            ("stop", &ParamValue::Json(r#"["a"]"#.to_owned())),
            ("temperature", &ParamValue::Float(0.5)),
            ("top_k", &ParamValue::Int(4)),
        ]
    );
}

#[tokio::test]
async fn messages_come_as_json_or_as_its_text() {
    let edge = Edge::start().await;
    edge.cluster.script("m", Script::Chunks(vec![last()]));
    let messages = json!([
        { "role": "system", "content": "be brief" },
        { "role": "user", "content": [{ "type": "text", "text": "h" }, { "type": "text", "text": "i" }] },
    ]);
    for messages in [messages.clone(), Value::from(messages.to_string())] {
        let body = json!({ "parameters": { "messages": messages } });
        edge.post(PREDICT, &body.to_string()).await.ok();
        let rows = edge.cluster.last_call().rows;
        let chat = rows
            .column_by_name("messages")
            .unwrap()
            .as_list::<i32>()
            .value(0);
        let contents = chat.as_struct().column_by_name("content").unwrap().clone();
        let contents: Vec<_> = contents.as_string::<i32>().iter().flatten().collect();
        assert_eq!(contents, ["be brief", "hi"]);
    }
}

#[tokio::test]
async fn bad_bodies_are_refused_with_a_reason() {
    let edge = Edge::start().await;
    edge.cluster.script("m", Script::Chunks(vec![last()]));
    for (body, says) in [
        (r#"{"parameters":{"prompt":"x"}"#, "line 1"),
        ("[1,2]", "object"),
        ("nonsense", "JSON"),
        (r#"{"parameters":[]}"#, "parameters"),
        (r#"{"parameters":{}}"#, "prompt"),
        (r#"{"parameter":{"prompt":"x"}}"#, "'parameter'"),
        (r#"{"parameters":{"prompt":7}}"#, "prompt"),
        (r#"{"parameters":{"prompt":"a","messages":[]}}"#, "not both"),
        (r#"{"parameters":{"messages":[]}}"#, "messages"),
        (r#"{"parameters":{"messages":"[{"}}"#, "messages"),
        (
            r#"{"parameters":{"messages":[{"role":"user","content":7}]}}"#,
            "messages",
        ),
        (
            r#"{"parameters":{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}}"#,
            "messages",
        ),
    ] {
        let reason = edge.post(PREDICT, body).await.refused(400);
        assert!(reason.contains(says), "{body}: {reason}");
    }
    let many: serde_json::Map<String, Value> = (0..200)
        .map(|index| (format!("p{index}"), Value::from(1)))
        .collect();
    let mut many = json!({ "parameters": many });
    many["parameters"]["prompt"] = "x".into();
    edge.post(PREDICT, &many.to_string()).await.refused(400);
    assert!(
        edge.cluster.calls.lock().is_empty(),
        "no model was troubled"
    );
}

#[tokio::test]
async fn json_that_nests_without_end_is_refused() {
    let edge = Edge::start().await;
    edge.cluster.script("m", Script::Chunks(vec![last()]));
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let body = format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
        edge.post(PREDICT, &body).await.refused(400);
        edge.post(PREDICT, &open.repeat(100_000)).await.refused(400);
        let inside = json!({ "parameters": { "messages": body } });
        edge.post(PREDICT, &inside.to_string()).await.refused(400);
    }
}

#[tokio::test]
async fn a_model_that_cannot_answer_says_so_with_its_status() {
    let edge = Edge::start().await;
    let body = r#"{"parameters":{"prompt":"x"}}"#;
    edge.post(PREDICT, body).await.refused(404);
    edge.post(
        "/_plugins/_ml/models/_register",
        r#"{"name":"m","function_name":"text"}"#,
    )
    .await
    .ok();
    edge.post(PREDICT, body).await.refused(400);
    for (code, status) in [
        (ErrorCode::Overloaded, 429),
        (ErrorCode::Unavailable, 503),
        (ErrorCode::UpstreamFailed, 502),
        (ErrorCode::UpstreamTimeout, 504),
        (ErrorCode::DeadlineExceeded, 504),
        (ErrorCode::TooLarge, 413),
    ] {
        let error = PredictError::new(code, "no");
        for script in [Script::Refuses(error.clone()), Script::Fails(error.clone())] {
            edge.cluster.script("m", script);
            edge.post(PREDICT, body).await.refused(status);
            edge.post(&format!("{PREDICT}/stream"), body)
                .await
                .refused(status);
        }
    }
}

#[tokio::test]
async fn an_item_that_failed_fails_the_answer() {
    let edge = Edge::start().await;
    let failed = GenerationChunk {
        error: Some(("too_large".to_owned(), "the prompt is too long".to_owned())),
        finish_reason: Some(FinishReason::Error),
        ..last()
    };
    edge.cluster.script("m", Script::Chunks(vec![failed]));
    let reason = edge
        .post(PREDICT, r#"{"parameters":{"prompt":"x"}}"#)
        .await
        .refused(413);
    assert_eq!(reason, "the prompt is too long");
}

#[tokio::test]
async fn a_timeout_that_makes_no_sense_is_refused() {
    let edge = Edge::start().await;
    edge.cluster.script("m", Script::Chunks(vec![last()]));
    for bad in ["0", "-1", "soon", "99999999999999999999", "36000000000"] {
        let mut sent = request(Method::POST, PREDICT, r#"{"parameters":{"prompt":"x"}}"#);
        sent.headers_mut()
            .insert("x-volley-timeout-ms", bad.parse().unwrap());
        edge.send(sent).await.refused(400);
    }
}

fn doubler() -> Script {
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    let field = Field::new("x", DataType::FixedSizeList(item, 2), false);
    let schema = Arc::new(Schema::new(vec![field]));
    let signature = Signature {
        task: Task::Tensors,
        input: schema.clone(),
        output: schema,
    };
    Script::Tensors(signature, Box::new(|rows: RecordBatch| Ok(rows)))
}

#[tokio::test]
async fn tensors_go_in_and_come_out() {
    let edge = Edge::start().await;
    edge.cluster.script("m", doubler());
    let inputs = json!({ "x": [[1, 2], [3, 4.5]] });
    let rows = json!([{ "x": [1, 2] }, { "x": [3, 4.5] }]);
    for body in [
        json!({ "inputs": inputs }),
        json!({ "inputs": rows }),
        json!({ "parameters": { "inputs": inputs } }),
    ] {
        let answer = edge.post(PREDICT, &body.to_string()).await.ok();
        assert_eq!(
            answer["inference_results"][0]["output"],
            json!([{ "name": "x", "data_type": "FLOAT32", "shape": [2, 2], "data": [1.0, 2.0, 3.0, 4.5] }])
        );
    }
    let reason = edge
        .post(PREDICT, r#"{"inputs":{"x":[[1,2,3]]}}"#)
        .await
        .refused(400);
    assert!(
        reason.contains("'x'") && reason.contains("row 0"),
        "{reason}"
    );
    edge.post(PREDICT, r#"{"parameters":{"prompt":"x"}}"#)
        .await
        .refused(400);
    edge.post(
        &format!("{PREDICT}/stream"),
        &json!({ "inputs": inputs }).to_string(),
    )
    .await
    .refused(400);
}

#[tokio::test]
async fn a_body_that_is_neither_json_nor_declared_as_such_is_refused() {
    let edge = Edge::start().await;
    edge.cluster.script("m", Script::Chunks(vec![last()]));
    for media in ["text/plain", "application/x-www-form-urlencoded"] {
        let mut sent = request(Method::POST, PREDICT, "prompt=x");
        sent.headers_mut()
            .insert("content-type", media.parse().unwrap());
        let reason = edge.send(sent).await.refused(415);
        assert!(reason.contains(media), "{reason}");
    }
    let mut sent = request(Method::POST, PREDICT, r#"{"parameters":{"prompt":"x"}}"#);
    let media = "Application/JSON; charset=utf-8".parse().unwrap();
    sent.headers_mut().insert("content-type", media);
    edge.send(sent).await.ok();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any bytes, the response is a 4xx in the dialect's format, and the server continues.
    #[test]
    fn any_body_is_answered(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let edge = Edge::start().await;
            edge.cluster.script("m", doubler());
            let mut sent = request(Method::POST, PREDICT, "{}");
            *sent.body_mut() = http_body_util::Full::new(body.into());
            edge.send(sent).await.refused(400);
        });
    }
}
