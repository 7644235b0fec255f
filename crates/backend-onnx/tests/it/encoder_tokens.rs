//! Tokens of text encoders: their vectors, ids and texts.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, UInt32Type};
use futures::TryStreamExt;
use serde_json::{Value, json};
use volley_backend::Backend;
use volley_types::*;

use crate::encoders::{asking, columns, expected, model, run, texts_of};

async fn told(
    model: &Arc<dyn Backend>,
    rows: RecordBatch,
    parameters: &[(&str, bool)],
) -> Result<Vec<RecordBatch>, PredictError> {
    let mut request = asking(rows);
    for (name, value) in parameters {
        request.parameters.set(*name, ParamValue::Bool(*value))?;
    }
    model.predict(request).await?.try_collect().await
}

/// The numbers and the token count of each row.
fn vectors(batches: &[RecordBatch]) -> Vec<(Vec<f32>, usize)> {
    let rows = batches.iter().flat_map(|batch| {
        let tokens = batch.column_by_name("tokens").unwrap();
        let tokens = tokens.as_primitive::<UInt32Type>().clone();
        let lists = batch.column_by_name("embedding").unwrap();
        let lists = lists.as_list::<i32>().clone();
        (0..batch.num_rows()).map(move |row| {
            let numbers = lists.value(row);
            let numbers = numbers.as_primitive::<Float32Type>().values().to_vec();
            (numbers, tokens.value(row) as usize)
        })
    });
    rows.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_vectors_of_the_tokens_make_the_one_of_the_text() {
    let (model, expected) = (model("text-embed").await, expected("text-embed"));
    let texts = texts_of(&expected);
    let rows = columns(&[("text", texts.clone())]);
    let found = vectors(
        &told(&model, rows, &[("token_vectors", true)])
            .await
            .unwrap(),
    );
    assert_eq!(found.len(), texts.len());
    for ((numbers, tokens), row) in found.iter().zip(&expected) {
        assert_eq!(*tokens as u64, row["tokens"].as_u64().unwrap());
        assert_eq!(numbers.len(), tokens * 16);
        // The mean, scaled to length 1.
        let sum = |at: usize| numbers.iter().skip(at).step_by(16).sum::<f32>();
        let sums: Vec<f32> = (0..16).map(sum).collect();
        let length = sums.iter().map(|value| value * value).sum::<f32>().sqrt();
        for (sum, wanted) in sums.iter().zip(row["plain"].as_array().unwrap()) {
            let wanted = wanted.as_f64().unwrap() as f32;
            assert!((sum / length - wanted).abs() < 1e-5, "{sum} and {wanted}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_graph_that_pools_gives_the_vectors_of_its_tokens_from_another_output() {
    let model = model("text-embed-pooled").await;
    let rows = || columns(&[("text", vec!["a b", "a"])]);
    let (each, one) = tokio::join!(
        told(&model, rows(), &[("token_vectors", true)]),
        told(&model, rows(), &[("normalize", false)])
    );
    let (each, one) = (vectors(&each.unwrap()), vectors(&one.unwrap()));
    for ((numbers, tokens), (mean, _)) in each.iter().zip(&one) {
        assert_eq!((numbers.len(), mean.len()), (tokens * 4, 4));
        for (at, mean) in mean.iter().enumerate() {
            let sum = numbers.iter().skip(at).step_by(4).sum::<f32>();
            assert!((sum / *tokens as f32 - mean).abs() < 1e-5);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_vectors_of_tokens_says_so() {
    let embeds = model("text-embed").await;
    let rows = || columns(&[("text", vec!["fox"])]);
    let both = [("token_vectors", true), ("normalize", true)];
    let error = told(&embeds, rows(), &both).await.unwrap_err();
    assert!(error.message.contains("'normalize'"), "{error:?}");
    let classifies = model("text-classify").await;
    let error = told(&classifies, rows(), &both[..1]).await.unwrap_err();
    assert!(error.message.contains("'token_vectors'"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_encoder_tells_its_tokens_and_their_text() {
    for name in [
        "text-embed",
        "text-rerank",
        "text-classify",
        "text-tokens",
        "text-sparse",
    ] {
        let model = model(name).await;
        let rows = |text: &str| match name {
            "text-rerank" => columns(&[("query", vec![""]), ("text", vec![text])]),
            _ => columns(&[("text", vec![text])]),
        };
        // A text that is longer than the model's limit.
        let text = "the fox ran to the river and ".repeat(40);
        let text = text.trim_end();
        let asked = [("tokenize", true), ("return_token_strs", true)];
        let batches = told(&model, rows(text), &asked).await.unwrap();
        let row = GenerationRow::rows(&batches[0]).unwrap().next().unwrap();
        let ids = row.token_ids().unwrap().values().to_vec();
        assert!(40 * 7 <= ids.len(), "{name}: {}", ids.len());
        let spelt: Value = serde_json::from_str(row.token_logprobs().unwrap()).unwrap();
        let spelt = spelt.as_array().unwrap();
        assert_eq!(spelt.len(), ids.len(), "{name}");
        let edge = |token: &str| json!({ "token": token, "special": true });
        assert_eq!(spelt[0], edge("[CLS]"), "{name}");
        assert_eq!(spelt[ids.len() - 1], edge("[SEP]"), "{name}");
        let first = json!({ "token": "the", "special": false, "start": 0, "stop": 3 });
        assert_eq!(spelt[1], first, "{name}");
        for token in &spelt[1..ids.len() - 1] {
            let place = |name: &str| token[name].as_u64().unwrap() as usize;
            assert_eq!(token["token"], text[place("start")..place("stop")]);
        }
        let bare = [("tokenize", true), ("add_special_tokens", false)];
        let batches = told(&model, rows(text), &bare).await.unwrap();
        let row = GenerationRow::rows(&batches[0]).unwrap().next().unwrap();
        assert_eq!(
            row.token_ids().unwrap().values().to_vec(),
            ids[1..ids.len() - 1]
        );
        let list = serde_json::to_string(&ids).unwrap();
        for (skip, begins) in [(false, "[CLS] the fox"), (true, "the fox")] {
            let asked = [("detokenize", true), ("skip_special_tokens", skip)];
            let batches = told(&model, rows(&list), &asked).await.unwrap();
            let row = GenerationRow::rows(&batches[0]).unwrap().next().unwrap();
            assert!(row.text().unwrap().starts_with(begins), "{:?}", row.text());
        }
        for (bad, named) in [("[99999999]", "99999999"), ("fox", "list")] {
            let error = told(&model, rows(bad), &[("detokenize", true)]).await;
            assert!(error.unwrap_err().message.contains(named));
        }
        let odd = [("tokenize", true), ("return_token_string", true)];
        let error = told(&model, rows("fox"), &odd).await.unwrap_err();
        assert!(error.message.contains("'return_token_strs'"), "{error:?}");
        // Predictions still work.
        run(&model, rows("fox")).await.unwrap();
    }
}
