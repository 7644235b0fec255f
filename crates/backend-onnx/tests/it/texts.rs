//! Text encoders with long requests, and without `tokenizer.json`.

use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt32Type;
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use futures::{StreamExt, TryStreamExt};
use serde_json::Value;
use volley_types::*;

use crate::encoders::{asking, columns, expected, model, run, texts_of};
use crate::setup;

/// Copies the embedding model without its tokenizer, and returns the tokens of its vocabulary in
/// order.
fn without_tokenizer(target: &Path) -> Vec<String> {
    let source = setup::test_model("text-embed");
    std::fs::create_dir_all(target.join("1_Pooling")).unwrap();
    for file in [
        "model.onnx",
        "config.json",
        "modules.json",
        "config_sentence_transformers.json",
        "1_Pooling/config.json",
    ] {
        std::fs::copy(source.join(file), target.join(file)).unwrap();
    }
    let tokenizer = std::fs::read(source.join("tokenizer.json")).unwrap();
    let tokenizer: Value = serde_json::from_slice(&tokenizer).unwrap();
    let vocabulary = tokenizer["model"]["vocab"].as_object().unwrap();
    let mut tokens: Vec<_> = vocabulary.iter().collect();
    tokens.sort_by_key(|(_, id)| id.as_u64());
    tokens.into_iter().map(|(token, _)| token.clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vocabulary_gives_the_vectors_that_the_tokenizer_gives() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join("words");
    let tokens = without_tokenizer(&directory);
    let error = setup::load(&directory).await.err().unwrap();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    assert!(error.message.contains("vocab.txt"), "{}", error.message);

    let words = tokens.join("\n") + "\n";
    std::fs::write(directory.join("vocab.txt"), words).unwrap();
    let of_words = setup::load(&directory).await.unwrap();
    let reference = ModelRef::deployed(ModelName::new("m").unwrap());
    let signature = of_words.signature(&reference).await.unwrap();
    assert_eq!(signature.task, Task::Embed);
    let rows = expected("text-embed");
    let texts = texts_of(&rows);
    let with_file = model("text-embed").await;
    let wanted = run(&with_file, columns(&[("text", texts.clone())])).await;
    let found = run(&of_words, columns(&[("text", texts)])).await.unwrap();
    assert_eq!(found, wanted.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_answer_follows_the_first_batch_of_a_stream() {
    const BATCHES: usize = 16;
    let model = model("text-embed").await;
    let (sender, receiver) = futures::channel::mpsc::unbounded();
    let batch = |first: usize| {
        let texts: Vec<_> = (first..first + 600)
            .map(|row| format!("a dog {}", row % 7))
            .collect();
        columns(&[("text", texts.iter().map(String::as_str).collect())])
    };
    let schema = batch(0).schema();
    let input = Input::Stream {
        schema,
        batches: Box::pin(receiver),
    };
    let request = PredictRequest::new(ModelRef::deployed(ModelName::new("m").unwrap()), input);
    let mut answer = model.predict(request).await.unwrap();
    // The request has not ended yet.
    for number in 0..BATCHES {
        sender.unbounded_send(Ok(batch(number * 600))).unwrap();
        let rows = answer.next().await.unwrap().unwrap();
        assert_eq!(rows.num_rows(), 600);
    }
    drop(sender);
    assert!(answer.next().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_batch_is_answered_in_pieces_in_its_order() {
    let model = model("text-embed").await;
    let texts: Vec<_> = (0..2_500)
        .map(|row| format!("{} dog", "a ".repeat(row % 20)))
        .collect();
    let rows = columns(&[("text", texts.iter().map(String::as_str).collect())]);
    let answer: Vec<_> = model
        .predict(asking(rows))
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    let sizes: Vec<_> = answer.iter().map(RecordBatch::num_rows).collect();
    assert_eq!(sizes, [1_024, 1_024, 452]);
    let counts = answer.iter().flat_map(|batch| {
        let counts = batch.column_by_name("tokens").unwrap();
        counts.as_primitive::<UInt32Type>().values().to_vec()
    });
    let counts: Vec<_> = counts.collect();
    for (row, count) in counts.iter().enumerate() {
        assert_eq!(*count as usize, counts[0] as usize + row % 20, "row {row}");
    }
    // Errors count rows from the start of the batch that was sent.
    let mut texts: Vec<_> = texts.iter().map(|text| Some(text.as_str())).collect();
    texts[2_000] = None;
    let column: ArrayRef = Arc::new(StringArray::from(texts));
    let rows = RecordBatch::try_from_iter_with_nullable([("text", column, true)]).unwrap();
    let answer: Result<Vec<_>, _> = model
        .predict(asking(rows))
        .await
        .unwrap()
        .try_collect()
        .await;
    let error = answer.unwrap_err();
    assert!(error.message.contains("row 2000"), "{}", error.message);
}
