//! Tokenization on every route that clients of vLLM, llama.cpp, Text Embeddings Inference or Text
//! Generation Inference use for it, with generation models and text encoders.

use std::sync::Arc;

use arrow_array::builder::{Float32Builder, ListBuilder};
use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::DataType;
use serde_json::{Value, json};
use volley_types::{FinishReason, GenerationChunk, GenerationChunks, Signature};

use super::{list, tokens as counts};
use crate::support::{Edge, Script};

/// A model whose tokens are the letters of a text. `named` formats a token.
fn speller(signature: Signature, column: &'static str, named: fn(usize, char) -> Value) -> Script {
    let answer = move |rows: RecordBatch| {
        let mut chunks = GenerationChunks::default();
        let texts = rows.column_by_name(column);
        let texts = texts.map(|texts| texts.as_string::<i32>());
        for row in 0..rows.num_rows() {
            // A conversation has no templated text in this script.
            let text = texts.map_or("hi", |texts| texts.value(row));
            let ids = serde_json::from_str::<Vec<u32>>(text);
            let mut chunk = GenerationChunk {
                item: row as u32,
                finish_reason: Some(FinishReason::Stop),
                last: true,
                ..GenerationChunk::default()
            };
            match ids {
                Ok(ids) => chunk.text = ids.into_iter().map(char::from_u32).collect(),
                Err(_) => {
                    chunk.token_ids = Some(text.chars().map(u32::from).collect());
                    let told = text.chars().enumerate();
                    let told: Value = told.map(|(at, letter)| named(at, letter)).collect();
                    chunk.token_logprobs = Some(told.to_string());
                    chunk.text = Some(text.to_owned());
                }
            }
            chunks.push(&chunk);
        }
        Ok(chunks.finish())
    };
    Script::Tensors(signature, Box::new(answer))
}

fn decoder() -> Script {
    let named = |_, letter: char| json!({ "token": letter.to_string(), "logprob": 0.0 });
    speller(Signature::generation().within(64), "prompt", named)
}

fn encoder(signature: Signature) -> Script {
    let named = |at: usize, letter: char| match letter {
        '^' => json!({ "token": "[CLS]", "special": true }),
        _ => json!({ "token": letter.to_string(), "special": false, "start": at, "stop": at + 1 }),
    };
    speller(signature.within(64), "text", named)
}

#[tokio::test]
async fn a_model_that_generates_tells_its_tokens_in_every_form() {
    let edge = Edge::start().await;
    edge.cluster.script("chat", decoder());
    let ids = json!([72, 105]);
    let placed = json!([
        { "id": 72, "text": "H", "special": false, "start": 0, "stop": 1 },
        { "id": 105, "text": "i", "special": false, "start": 1, "stop": 2 },
    ]);
    let chat = json!([{ "role": "user", "content": "hi" }]);
    let of_chat = json!([
        { "id": 104, "text": "h", "special": false, "start": 0, "stop": 1 },
        { "id": 105, "text": "i", "special": false, "start": 1, "stop": 2 },
    ]);
    for (path, body, wanted) in [
        // vLLM
        (
            "/tokenize",
            json!({ "model": "chat", "prompt": "Hi", "return_token_strs": true }),
            json!({ "count": 2, "max_model_len": 64, "tokens": ids, "token_strs": ["H", "i"] }),
        ),
        (
            "/tokenize",
            json!({ "model": "chat", "messages": chat }),
            json!({ "count": 2, "max_model_len": 64, "tokens": [104, 105], "token_strs": null }),
        ),
        (
            "/detokenize",
            json!({ "model": "chat", "tokens": ids }),
            json!({ "prompt": "Hi", "content": "Hi" }),
        ),
        // llama.cpp
        (
            "/tokenize",
            json!({ "content": "Hi" }),
            json!({ "tokens": ids }),
        ),
        (
            "/tokenize",
            json!({ "content": "Hi", "with_pieces": true, "add_special": true }),
            json!({ "tokens": [{ "id": 72, "piece": "H" }, { "id": 105, "piece": "i" }] }),
        ),
        // TGI
        ("/tokenize", json!({ "inputs": "Hi" }), placed.clone()),
        (
            "/tgi/chat/tokenize",
            json!({ "inputs": "Hi" }),
            placed.clone(),
        ),
        (
            "/chat_tokenize",
            json!({ "messages": chat }),
            json!({ "tokenize_response": of_chat, "templated_text": "hi" }),
        ),
        // TEI
        (
            "/tei/chat/tokenize",
            json!({ "inputs": ["Hi"] }),
            json!([placed]),
        ),
        ("/decode", json!({ "ids": ids }), json!(["Hi"])),
        (
            "/decode",
            json!({ "ids": [[72], [105]], "skip_special_tokens": false }),
            json!(["H", "i"]),
        ),
    ] {
        assert_eq!(
            edge.post(path, &body.to_string()).await.ok(),
            wanted,
            "{path} {body}"
        );
    }
}

#[tokio::test]
async fn every_text_encoder_tells_its_tokens_too() {
    for signature in [
        Signature::embed(3),
        Signature::rerank(),
        Signature::classify(),
        Signature::classify_tokens(),
        Signature::encode_sparse(),
    ] {
        let edge = Edge::start().await;
        edge.cluster.script("e", encoder(signature.clone()));
        let placed = json!([
            { "id": 94, "text": "[CLS]", "special": true, "start": null, "stop": null },
            { "id": 105, "text": "i", "special": false, "start": 1, "stop": 2 },
        ]);
        for (path, body, wanted) in [
            ("/tokenize", json!({ "inputs": "^i" }), placed.clone()),
            (
                "/tei/e/tokenize",
                json!({ "inputs": ["^i"] }),
                json!([placed]),
            ),
            (
                "/tokenize",
                json!({ "content": "^i" }),
                json!({ "tokens": [94, 105] }),
            ),
            (
                "/tokenize",
                json!({ "model": "e", "prompt": "^i" }),
                json!({ "count": 2, "max_model_len": 64, "tokens": [94, 105], "token_strs": null }),
            ),
            ("/decode", json!({ "ids": [94, 105] }), json!(["^i"])),
            (
                "/tei/e/decode",
                json!({ "ids": [[94], [105]] }),
                json!(["^", "i"]),
            ),
            (
                "/detokenize",
                json!({ "tokens": [94, 105] }),
                json!({ "prompt": "^i", "content": "^i" }),
            ),
        ] {
            let told = edge.post(path, &body.to_string()).await.ok();
            assert_eq!(told, wanted, "{:?} {path} {body}", signature.task);
        }
        let chat = json!({ "messages": [{ "role": "user", "content": "hi" }] });
        let refused = edge.post("/tokenize", &chat.to_string()).await;
        assert!(refused.refused_openai(400).contains("'prompt'"));
        // Beside a generation model, the encoder is used if the request names it.
        edge.cluster.script("chat", decoder());
        edge.post("/tokenize", r#"{"content":"a"}"#).await.ok();
        assert_eq!(edge.cluster.last_call().model.to_string(), "chat");
        edge.post("/tokenize?model=e", r#"{"content":"a"}"#)
            .await
            .ok();
        assert_eq!(edge.cluster.last_call().model.to_string(), "e");
    }
}

#[tokio::test]
async fn texts_become_the_vectors_of_their_tokens() {
    let edge = Edge::start().await;
    // Three tokens with vectors of two numbers, for any text.
    let answer = |rows: RecordBatch| {
        let field = list(DataType::Float32);
        let mut vectors = ListBuilder::new(Float32Builder::new()).with_field(field);
        for _ in 0..rows.num_rows() {
            vectors
                .values()
                .append_slice(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
            vectors.append(true);
        }
        let columns = vec![Arc::new(vectors.finish()) as ArrayRef, counts(&rows)];
        Ok(RecordBatch::try_new(Signature::embed(2).output, columns).unwrap())
    };
    let script = Script::Tensors(Signature::embed(2), Box::new(answer));
    edge.cluster.script("e", script);
    let one = json!([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]);
    let told = edge
        .post("/embed_all", r#"{"inputs":["a","b"]}"#)
        .await
        .ok();
    assert_eq!(told, json!([one, one]));
    let named = r#"{"inputs":"a","truncate":true,"prompt_name":"query"}"#;
    let told = edge.post("/tei/e/embed_all", named).await.ok();
    assert_eq!(told, json!([one]));
    let called = edge.cluster.last_call().parameters;
    for name in ["token_vectors", "truncate"] {
        assert_eq!(called.boolean(name).unwrap(), Some(true), "{name}");
    }
}
