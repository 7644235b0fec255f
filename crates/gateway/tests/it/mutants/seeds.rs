//! Real bodies of every dialect.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, RecordBatch};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema};
use serde_json::{Value, json};

const JSON: &str = "application/json";

/// A body as a client sends it.
pub(super) struct Seed {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) media: &'static str,
    /// Length of the JSON in bytes, if tensors follow.
    pub(super) split: Option<usize>,
    pub(super) body: Vec<u8>,
}

fn seed(path: &'static str, body: &Value) -> Seed {
    Seed {
        method: "POST",
        path,
        media: JSON,
        split: None,
        body: body.to_string().into_bytes(),
    }
}

fn messages() -> Value {
    let call = json!({ "id": "c", "type": "function",
                       "function": { "name": "f", "arguments": "{\"a\":1}" } });
    json!([
        { "role": "system", "content": "be brief" },
        { "role": "user", "content": [{ "type": "text", "text": "hi \u{1F600}" }] },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "content": "4", "tool_call_id": "c" },
    ])
}

pub(super) fn dialects() -> Vec<Seed> {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": schema } });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    let chat = json!({
        "model": "m", "messages": messages(), "max_tokens": 9, "temperature": 0.5, "n": 1,
        "stop": ["a"], "seed": 7, "logprobs": true, "top_logprobs": 2, "tools": [tool],
        "tool_choice": { "type": "function", "function": { "name": "f" } },
        "response_format": format, "logit_bias": { "5": -1 }, "stream": true,
        "stream_options": { "include_usage": true },
    });
    let response = json!({
        "model": "m", "instructions": "be brief", "max_output_tokens": 9, "stream": true,
        "input": [{ "role": "user", "content": [{ "type": "input_text", "text": "hi" }] },
                  { "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}" },
                  { "type": "function_call_output", "call_id": "c", "output": "4" }],
        "tools": [{ "type": "function", "name": "f", "parameters": schema }],
        "text": { "format": { "type": "json_object" } }, "reasoning": { "effort": "low" },
    });
    let message = json!({
        "model": "m", "max_tokens": 9, "system": [{ "type": "text", "text": "be brief" }],
        "messages": [
            { "role": "user", "content": "hi" },
            { "role": "assistant", "content": [
                { "type": "tool_use", "id": "t", "name": "f", "input": { "a": 1 } }] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "t", "content": "4" }] },
        ],
        "tools": [{ "name": "f", "input_schema": schema }], "tool_choice": { "type": "any" },
        "stop_sequences": ["a"], "stream": true,
    });
    let ollama = json!({
        "model": "m", "messages": [{ "role": "user", "content": "hi" }], "format": schema,
        "tools": [tool], "think": "low", "logprobs": true, "top_logprobs": 2,
        "options": { "num_predict": 9, "stop": ["a"], "seed": 1, "temperature": 0.5 },
    });
    let cohere = json!({
        "model": "m", "max_tokens": 9, "k": 4, "p": 0.5, "stop_sequences": ["a"], "stream": true,
        "messages": [
            { "role": "user", "content": [{ "type": "text", "text": "hi" }] },
            { "role": "assistant", "tool_plan": "I look", "tool_calls": [
                { "id": "c", "type": "function", "function": { "name": "f", "arguments": "{}" } }] },
            { "role": "tool", "tool_call_id": "c", "content": [
                { "type": "document", "document": { "data": { "a": 1 } } }] },
        ],
        "tools": [tool], "tool_choice": "REQUIRED", "logprobs": true,
        "response_format": { "type": "json_object", "json_schema": schema },
    });
    let vectors = json!({ "model": "e", "texts": ["a", "b"], "input_type": "search_query",
                          "embedding_types": ["float", "base64"], "output_dimension": 2 });
    let rerank = json!({ "model": "r", "query": "q", "documents": ["a", { "text": "b" }],
                         "top_n": 1, "return_documents": true });
    vec![
        seed("/v1/chat/completions", &chat),
        seed("/v1/responses", &response),
        seed("/v1/responses/input_tokens", &response),
        seed(
            "/v1/completions",
            &json!({ "model": "m", "prompt": ["a", "b"], "logprobs": 2,
                                         "max_tokens": 3, "n": 2, "stream": false }),
        ),
        seed(
            "/v1/embeddings",
            &json!({ "model": "e", "input": ["a", "b"], "dimensions": 2,
                                        "encoding_format": "base64", "input_type": "query" }),
        ),
        seed("/v1/rerank", &rerank),
        seed("/v2/rerank", &rerank),
        seed("/v2/chat", &cohere),
        seed("/v1/embed", &vectors),
        seed("/v2/embed", &vectors),
        seed("/v1/messages", &message),
        seed("/v1/messages/count_tokens", &message),
        seed("/api/chat", &ollama),
        seed(
            "/api/generate",
            &json!({ "model": "m", "prompt": "hi", "system": "y", "raw": false,
                                       "options": { "top_k": 4 }, "stream": false }),
        ),
        seed(
            "/api/embed",
            &json!({ "model": "e", "input": ["a"], "dimensions": 2 }),
        ),
        seed("/api/show", &json!({ "model": "m" })),
    ]
}

pub(super) fn opensearch() -> Vec<Seed> {
    let connector = json!({
        "name": "Chat", "version": "1", "protocol": "http", "connector_id": "c",
        "parameters": { "endpoint": "llm.example", "model": "small" },
        "credential": { "key": "env:KEY" }, "client_config": { "max_retry_times": 1 },
        "actions": [{ "action_type": "predict", "method": "POST",
                      "url": "https://${parameters.endpoint}/v1/chat/completions",
                      "headers": { "Authorization": "Bearer ${credential.key}" },
                      "request_body": "{\"m\":${parameters.messages}}" }],
        "endpoints": [{ "url": "https://api.cohere.com/v2/chat", "model": "x", "weight": 2 }],
    });
    let model = json!({
        "name": "encoder", "function_name": "text_embedding", "version": "1",
        "model_format": "ONNX", "url": "https://models.example/encoder.zip",
        "model_content_hash_value": "a".repeat(64), "parameters": { "a": 1 },
        "model_config": { "model_type": "bert", "embedding_dimension": 8, "all_config": "{}",
                          "framework_type": "sentence_transformers", "pooling_mode": "MEAN" },
    });
    let search = json!({
        "query": { "bool": { "must": [{ "term": { "name.keyword": "m" } }],
                             "should": [{ "match": { "description": { "query": "a b", "operator": "and" } } },
                                        { "range": { "created_time": { "gte": 0 } } }],
                             "must_not": { "wildcard": { "name": "*x?" } } } },
        "sort": [{ "created_time": { "order": "desc" } }], "from": 0, "size": 10,
        "_source": { "includes": ["name"], "excludes": ["x*"] },
    });
    let generation = json!({ "parameters": { "messages": messages(), "temperature": "0.5",
                                             "_llm_interface": "bedrock/converse" } });
    let settings = json!({ "persistent": { "plugins": { "ml_commons": {
        "trusted_connector_endpoints_regex": [".*"], "max_model_on_node": 9 } } } });
    let mut seeds = vec![
        seed("/_plugins/_ml/connectors/_create", &connector),
        seed("/_plugins/_ml/models/_register", &model),
        seed("/_plugins/_ml/models/_search", &search),
        seed("/_plugins/_ml/tasks/_search", &search),
        seed("/_plugins/_ml/models/m/_predict", &generation),
        seed("/_plugins/_ml/models/m/_predict/stream", &generation),
        seed(
            "/_plugins/_ml/models/e/_predict",
            &json!({ "text_docs": ["a", "b"],
            "return_number": true, "target_response": ["sentence_embedding"] }),
        ),
        seed(
            "/_plugins/_ml/models/t/_predict",
            &json!({ "inputs": { "x": [1.5, 2] } }),
        ),
        seed(
            "/_plugins/_ml/models/m/_deploy",
            &json!({ "node_ids": ["w1"], "replicas": 1 }),
        ),
        seed(
            "/_plugins/_ml/models/_undeploy",
            &json!({ "model_ids": ["d"], "node_ids": ["w1"] }),
        ),
        seed(
            "/_plugins/_ml/model_groups/_register",
            &json!({ "name": "g", "description": "d" }),
        ),
        seed(
            "/_volley/keys",
            &json!({ "name": "k", "role": "predict", "models": ["m*"],
                                       "expires_in_s": 60 }),
        ),
        seed(
            "/_volley/nodes/join",
            &json!({ "id": 7, "address": "127.0.0.1:1" }),
        ),
    ];
    for (path, body) in [
        ("/_cluster/settings", settings),
        (
            "/_plugins/_ml/connectors/c",
            json!({ "parameters": { "model": "x" }, "weight": 2 }),
        ),
        (
            "/_plugins/_ml/models/m",
            json!({ "description": "x", "model_group_id": null }),
        ),
    ] {
        seeds.push(Seed {
            method: "PUT",
            ..seed(path, &body)
        });
    }
    seeds
}

pub(super) fn tensors() -> Vec<Seed> {
    let input = json!({ "name": "x", "datatype": "FP32", "shape": [2], "data": [1.5, 2.0] });
    let infer = json!({ "id": "i", "inputs": [input], "outputs": [{ "name": "x" }],
                        "parameters": { "sequence_id": 3 } });
    let told = json!({ "inputs": [{ "name": "x", "datatype": "FP32", "shape": [2],
                                    "parameters": { "binary_data_size": 8 } }],
                       "outputs": [{ "name": "x", "parameters": { "binary_data": true } }] });
    let told = told.to_string().into_bytes();
    let split = told.len();
    let raw = [told, vec![0, 0, 128, 63, 0, 0, 0, 64]].concat();
    let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Float32, false)]));
    let column: ArrayRef = Arc::new(Float32Array::from(vec![1.5, 2.0]));
    let batch = RecordBatch::try_new(schema.clone(), vec![column]).unwrap();
    let mut writer = StreamWriter::try_new(Vec::new(), &schema).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    let lines = "{\"x\":1.5}\n{\"x\":2}\n".as_bytes().to_vec();
    let generate = json!({ "text_input": "hi", "id": "i", "parameters": { "max_tokens": 3 } });
    vec![
        seed("/v2/models/t/infer", &infer),
        Seed {
            split: Some(split),
            body: raw,
            ..seed("/v2/models/t/infer", &infer)
        },
        Seed {
            split: Some(0),
            body: vec![0; 8],
            ..seed("/v2/models/t/infer", &infer)
        },
        seed("/v2/models/m/generate", &generate),
        seed("/v2/models/m/generate_stream", &generate),
        seed("/v2/repository/index", &json!({ "ready": true })),
        Seed {
            media: "application/vnd.apache.arrow.stream",
            body: writer.into_inner().unwrap(),
            ..seed("/_plugins/_ml/models/s/_predict/stream", &infer)
        },
        Seed {
            media: "application/x-ndjson",
            body: lines,
            ..seed("/_plugins/_ml/models/s/_predict/stream", &infer)
        },
    ]
}
