//! Texts of several callers in one run, of which one makes the run fail.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Float32Type;
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray};
use futures::TryStreamExt;
use futures::future::join_all;
use serde_json::Value;
use volley_backend::Backend;
use volley_types::*;

use crate::setup;

const LIMIT: Duration = Duration::from_secs(60);

/// An encoder whose tokenizer has a word outside of its table of vectors, and that waits shortly,
/// so that concurrent requests share one run.
fn with_a_poisonous_word(folder: &Path) {
    let model = setup::test_model("text-embed");
    for file in ["config.json", "model.onnx"] {
        std::fs::copy(model.join(file), folder.join(file)).unwrap();
    }
    let tokenizer = std::fs::read(model.join("tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_slice(&tokenizer).unwrap();
    tokenizer["model"]["vocab"]["poison"] = 5_000.into();
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(folder.join("model.toml"), "batch_window_us = 200000\n").unwrap();
}

async fn embed(model: &Arc<dyn Backend>, texts: &[&str]) -> Result<Vec<Vec<f32>>, PredictError> {
    let column: ArrayRef = Arc::new(StringArray::from(texts.to_vec()));
    let rows = RecordBatch::try_from_iter([("text", column)]).unwrap();
    let name = ModelRef::deployed(ModelName::new("m").unwrap());
    let request = PredictRequest::new(name, Input::Batch(rows));
    let batches: Vec<_> = model.predict(request).await?.try_collect().await?;
    let vectors = batches.iter().flat_map(|batch| {
        let lists = batch.column_by_name("embedding").unwrap().as_list::<i32>();
        let rows = (0..lists.len()).map(|row| lists.value(row));
        rows.map(|row| row.as_primitive::<Float32Type>().values().to_vec())
            .collect::<Vec<_>>()
    });
    Ok(vectors.collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_breaks_a_run_fails_its_own_request_and_no_neighbour() {
    let kept = tempfile::tempdir().unwrap();
    let folder = kept.path().join("encoder");
    std::fs::create_dir(&folder).unwrap();
    with_a_poisonous_word(&folder);
    let model = setup::load(&folder).await.unwrap();
    let sound = ["the river", "a fox and a crow", "rain"];
    let alone = embed(&model, &sound).await.unwrap();
    let mut requests: Vec<Vec<&str>> = (0..15).map(|_| sound.to_vec()).collect();
    requests.insert(7, vec!["the river", "poison"]);
    let answers = join_all(requests.iter().map(|texts| embed(&model, texts)));
    let answers = tokio::time::timeout(LIMIT, answers).await.unwrap();
    for (index, answer) in answers.into_iter().enumerate() {
        if index == 7 {
            let error = answer.unwrap_err();
            assert_eq!(error.origin, ErrorOrigin::Model, "{}", error.chain());
            continue;
        }
        for (found, expected) in answer.unwrap().iter().zip(&alone) {
            let near = |(one, other): (&f32, &f32)| (one - other).abs() < 1e-5;
            assert!(found.iter().zip(expected).all(near), "request {index}");
        }
    }
    // The model still works.
    assert_eq!(embed(&model, &sound).await.unwrap().len(), sound.len());
}
