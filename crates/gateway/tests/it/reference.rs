//! Behaviour that the public tests of other servers check, tested on this server. Each module is
//! named after the server. The behaviour is that of the server; the tests are our own.

#[path = "reference/llama_cpp.rs"]
mod llama_cpp;
#[path = "reference/ollama.rs"]
mod ollama;
#[path = "reference/tei.rs"]
mod tei;
#[path = "reference/tgi.rs"]
mod tgi;
#[path = "reference/tokens.rs"]
mod tokens;
#[path = "reference/vllm.rs"]
mod vllm;

use std::sync::Arc;

use arrow_array::builder::{Float32Builder, ListBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, Float32Array, RecordBatch, UInt32Array};
use arrow_schema::{DataType, Field};
use volley_types::{FinishReason, GenerationChunk, Signature, Usage};

use super::support::{Script, last, text};

/// A model that generates two words.
pub(crate) fn talker() -> Script {
    let end = GenerationChunk {
        finish_reason: Some(FinishReason::Length),
        usage: Some(Usage {
            prompt_tokens: 6,
            completion_tokens: 2,
            ..Usage::default()
        }),
        ..last()
    };
    Script::Chunks(vec![text("Hello"), text(" there"), end])
}

fn list(data_type: DataType) -> Arc<Field> {
    Arc::new(Field::new("item", data_type, false))
}

fn tokens(rows: &RecordBatch) -> ArrayRef {
    Arc::new(UInt32Array::from(vec![3; rows.num_rows()]))
}

/// A model whose vectors are 3, 4 and the length of the text.
pub(crate) fn embedder() -> Script {
    let answer = |rows: RecordBatch| {
        let texts = rows.column_by_name("text").unwrap().as_string::<i32>();
        let mut vectors =
            ListBuilder::new(Float32Builder::new()).with_field(list(DataType::Float32));
        for text in texts.iter().flatten() {
            vectors
                .values()
                .append_slice(&[3.0, 4.0, text.len() as f32 - 1.0]);
            vectors.append(true);
        }
        let columns = vec![Arc::new(vectors.finish()) as ArrayRef, tokens(&rows)];
        Ok(RecordBatch::try_new(Signature::embed(3).output, columns).unwrap())
    };
    Script::Tensors(Signature::embed(3).within(512), Box::new(answer))
}

/// A model that scores longer texts higher.
pub(crate) fn ranker() -> Script {
    let answer = |rows: RecordBatch| {
        let texts = rows.column_by_name("text").unwrap().as_string::<i32>();
        let scores = texts.iter().flatten().map(|text| text.len() as f32 / 100.0);
        let scores = Arc::new(Float32Array::from_iter_values(scores)) as ArrayRef;
        let columns = vec![scores, tokens(&rows)];
        Ok(RecordBatch::try_new(Signature::rerank().output, columns).unwrap())
    };
    Script::Tensors(Signature::rerank().within(512), Box::new(answer))
}

/// A model that returns two columns of names and numbers for each text: labels or terms.
fn named(signature: Signature, names: [&'static str; 2], numbers: [f32; 2]) -> Script {
    let output = signature.output.clone();
    let answer = move |rows: RecordBatch| {
        let mut lists = ListBuilder::new(StringBuilder::new()).with_field(list(DataType::Utf8));
        let mut values =
            ListBuilder::new(Float32Builder::new()).with_field(list(DataType::Float32));
        for _ in 0..rows.num_rows() {
            for (name, number) in names.iter().zip(numbers) {
                lists.values().append_value(name);
                values.values().append_value(number);
            }
            lists.append(true);
            values.append(true);
        }
        let columns = vec![
            Arc::new(lists.finish()) as ArrayRef,
            Arc::new(values.finish()),
            tokens(&rows),
        ];
        Ok(RecordBatch::try_new(output.clone(), columns).unwrap())
    };
    Script::Tensors(signature, Box::new(answer))
}
