//! Text encoders, compared with `transformers` on the same weights.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, UInt32Type};
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray, StructArray};
use futures::future::join_all;
use futures::{StreamExt, TryStreamExt};
use serde_json::Value;
use volley_backend::Backend;
use volley_types::*;

use crate::setup;

const CLOSE: f32 = 1e-5;

pub(crate) async fn model(name: &str) -> Arc<dyn Backend> {
    setup::load(&setup::test_model(name)).await.unwrap()
}

pub(crate) fn expected(name: &str) -> Vec<Value> {
    let path = setup::test_model(name).join("expected.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

pub(crate) fn texts_of(rows: &[Value]) -> Vec<&str> {
    rows.iter()
        .map(|row| row["text"].as_str().unwrap())
        .collect()
}

pub(crate) fn columns(columns: &[(&str, Vec<&str>)]) -> RecordBatch {
    let columns = columns.iter().map(|(name, texts)| {
        let texts: ArrayRef = Arc::new(StringArray::from(texts.clone()));
        (*name, texts)
    });
    RecordBatch::try_from_iter(columns).unwrap()
}

pub(crate) fn asking(rows: RecordBatch) -> PredictRequest {
    let model = ModelRef::deployed(ModelName::new("m").unwrap());
    PredictRequest::new(model, Input::Batch(rows))
}

pub(crate) async fn run(
    model: &Arc<dyn Backend>,
    rows: RecordBatch,
) -> Result<RecordBatch, PredictError> {
    let mut answer: Vec<_> = model.predict(asking(rows)).await?.try_collect().await?;
    assert_eq!(answer.len(), 1);
    Ok(answer.remove(0))
}

fn vector(batch: &RecordBatch, row: usize) -> Vec<f32> {
    let vectors = batch.column_by_name("embedding").unwrap().as_list::<i32>();
    vectors
        .value(row)
        .as_primitive::<Float32Type>()
        .values()
        .to_vec()
}

fn close(found: &[f32], wanted: &Value) {
    let wanted = wanted.as_array().unwrap();
    assert_eq!(found.len(), wanted.len());
    for (found, wanted) in found.iter().zip(wanted) {
        let wanted = wanted.as_f64().unwrap() as f32;
        assert!((found - wanted).abs() < CLOSE, "{found} and {wanted}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn vectors_are_those_of_transformers_with_and_without_a_prefix_and_cut() {
    let (model, expected) = (model("text-embed").await, expected("text-embed"));
    let signature = model
        .signature(&asking(columns(&[("text", vec![])])).model)
        .await
        .unwrap();
    assert_eq!(signature, Signature::embed(16).within(32));
    let texts = texts_of(&expected);
    let plain = run(&model, columns(&[("text", texts.clone())]))
        .await
        .unwrap();
    let kinds = vec!["query"; texts.len()];
    let asked = run(
        &model,
        columns(&[("text", texts.clone()), ("input_type", kinds)]),
    );
    let asked = asked.await.unwrap();
    let mut short = asking(columns(&[("text", texts.clone())]));
    let four = ParamValue::Int(4);
    short.parameters.set("dimensions", four).unwrap();
    let short: Vec<_> = model
        .predict(short)
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    let tokens = plain
        .column_by_name("tokens")
        .unwrap()
        .as_primitive::<UInt32Type>();
    for (index, row) in expected.iter().enumerate() {
        close(&vector(&plain, index), &row["plain"]);
        close(&vector(&asked, index), &row["query"]);
        close(&vector(&short[0], index), &row["short"]);
        assert_eq!(
            u64::from(tokens.value(index)),
            row["tokens"].as_u64().unwrap()
        );
    }
}

/// Copies the embedding model to `folder`.
fn copied(folder: &Path) -> PathBuf {
    let directory = folder.join("text-embed");
    std::fs::create_dir_all(directory.join("1_Pooling")).unwrap();
    let source = setup::test_model("text-embed");
    for entry in std::fs::read_dir(&source).unwrap() {
        let entry = entry.unwrap();
        if entry.path().is_file() {
            std::fs::copy(entry.path(), directory.join(entry.file_name())).unwrap();
        }
    }
    let pooling = "1_Pooling/config.json";
    std::fs::copy(source.join(pooling), directory.join(pooling)).unwrap();
    directory
}

/// A model for which several one-thread sessions are chosen, and one wide session.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_side_by_side_answer_as_one_does() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = copied(scratch.path());
    let graph = directory.join("model.onnx");
    let mut bytes = std::fs::read(&graph).unwrap();
    // A `ModelProto.doc_string` of 40 MiB, whose length is encoded in four bytes.
    bytes.extend([0x32, 0x80, 0x80, 0x80, 0x14]);
    bytes.resize(bytes.len() + (40 << 20), b' ');
    std::fs::write(&graph, &bytes).unwrap();
    let model = setup::load(&directory).await.unwrap();
    let sessions = model.memory_bytes() / bytes.len() as u64;
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(
        1 < sessions,
        1 < cores,
        "{sessions} sessions on {cores} cores"
    );
    std::fs::write(directory.join("model.toml"), "instances = 1\n").unwrap();
    let one = setup::load(&directory).await.unwrap();
    assert_eq!(one.memory_bytes(), bytes.len() as u64);

    let expected = expected("text-embed");
    let texts = texts_of(&expected);
    let ask = async |text| {
        let answer = run(&model, columns(&[("text", vec![text])])).await.unwrap();
        vector(&answer, 0)
    };
    for _ in 0..5 {
        for (text, row) in texts.iter().zip(&expected) {
            close(&ask(text).await, &row["plain"]);
        }
        let together = join_all(texts.iter().cycle().take(40).map(|text| ask(text))).await;
        for (found, row) in together.iter().zip(expected.iter().cycle()) {
            close(found, &row["plain"]);
        }
        let all = run(&one, columns(&[("text", texts.clone())]))
            .await
            .unwrap();
        for (index, row) in expected.iter().enumerate() {
            close(&vector(&all, index), &row["plain"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_may_give_shorter_vectors_where_a_request_does_not_say() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = copied(scratch.path());
    let say = |text: &str| std::fs::write(directory.join("model.toml"), text).unwrap();
    let count = |count| [("dimensions".to_owned(), ParamValue::Int(count))];
    let expected = expected("text-embed");
    let texts = columns(&[("text", texts_of(&expected))]);
    say("dimensions = 4\n");
    let of_the_file = setup::load(&directory).await.unwrap();
    say("dimensions = 9\n");
    let registered = count(4).into_iter().collect();
    let of_the_version = setup::load_as(&directory, setup::config(), registered);
    for model in [of_the_file, of_the_version.await.unwrap()] {
        let signature = model.signature(&asking(texts.clone()).model).await.unwrap();
        assert_eq!(signature, Signature::embed(4).within(32));
        let short = run(&model, texts.clone()).await.unwrap();
        let mut whole = asking(texts.clone());
        whole.parameters = count(16).into_iter().collect();
        let whole = model.predict(whole).await.unwrap();
        let whole: Vec<_> = whole.try_collect().await.unwrap();
        for (index, row) in expected.iter().enumerate() {
            close(&vector(&short, index), &row["short"]);
            close(&vector(&whole[0], index), &row["plain"]);
        }
    }
    say("dimensions = 17\n");
    let error = setup::load(&directory).await.err().unwrap();
    assert!(error.message.contains("'dimensions' must be 1 to 16"));
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_one_shape_have_nothing_of_each_other() {
    let (model, expected) = (model("text-embed").await, expected("text-embed"));
    // From the second round on, each shape recurs.
    for round in 0..4 {
        for row in &expected {
            let text = row["text"].as_str().unwrap();
            let alone = run(&model, columns(&[("text", vec![text])])).await;
            close(&vector(&alone.unwrap(), 0), &row["plain"]);
        }
        let mut texts = texts_of(&expected);
        let turn = round % texts.len();
        texts.rotate_left(turn);
        let all = run(&model, columns(&[("text", texts)])).await.unwrap();
        for index in 0..expected.len() {
            let wanted = &expected[(index + turn) % expected.len()]["plain"];
            close(&vector(&all, index), wanted);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scores_labels_and_terms_are_those_of_transformers() {
    let cases = expected("text-rerank");
    let queries = cases
        .iter()
        .map(|row| row["query"].as_str().unwrap())
        .collect();
    let rows = columns(&[("query", queries), ("text", texts_of(&cases))]);
    let ranked = run(&model("text-rerank").await, rows).await.unwrap();
    let scores = ranked
        .column_by_name("score")
        .unwrap()
        .as_primitive::<Float32Type>();
    let wanted: Vec<_> = cases.iter().map(|row| row["score"].clone()).collect();
    close(scores.values(), &Value::Array(wanted));

    for (name, key, [names, numbers]) in [
        ("text-classify", "scores", ["labels", "scores"]),
        ("text-sparse", "terms", ["terms", "weights"]),
    ] {
        let cases = expected(name);
        let answer = run(&model(name).await, columns(&[("text", texts_of(&cases))]))
            .await
            .unwrap();
        let column = |name| answer.column_by_name(name).unwrap().as_list::<i32>();
        for (index, row) in cases.iter().enumerate() {
            let found: BTreeMap<String, f32> = {
                let (names, numbers) = (column(names).value(index), column(numbers).value(index));
                let numbers = numbers.as_primitive::<Float32Type>().values().to_vec();
                assert!(numbers.is_sorted_by(|a, b| a >= b), "the best first");
                let names = names
                    .as_string::<i32>()
                    .iter()
                    .map(|name| name.unwrap().to_owned());
                names.zip(numbers).collect()
            };
            let wanted = row[key].as_object().unwrap();
            assert_eq!(found.len(), wanted.len(), "{name}");
            for (label, number) in wanted {
                close(&[found[label]], &Value::Array(vec![number.clone()]));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_cover_the_tokens_that_transformers_names() {
    let cases = expected("text-tokens");
    let model = model("text-tokens").await;
    let answer = run(&model, columns(&[("text", texts_of(&cases))]))
        .await
        .unwrap();
    let entities = answer.column_by_name("entities").unwrap().as_list::<i32>();
    for (index, row) in cases.iter().enumerate() {
        let found = entities.value(index);
        let found: &StructArray = found.as_struct();
        let text: Vec<char> = row["text"].as_str().unwrap().chars().collect();
        let place = |name: &str, at| {
            found
                .column_by_name(name)
                .unwrap()
                .as_primitive::<UInt32Type>()
                .value(at) as usize
        };
        let word = |name: &str, at| {
            found
                .column_by_name(name)
                .unwrap()
                .as_string::<i32>()
                .value(at)
                .to_owned()
        };
        let mut spans = Vec::new();
        for at in 0..found.len() {
            let (start, end) = (place("start", at), place("end", at));
            let cut: String = text[start..end].iter().collect();
            assert_eq!(word("text", at), cut);
            spans.push((start, end, word("label", at)));
        }
        for token in row["inside"].as_array().unwrap() {
            let (start, end) = (
                token[0].as_u64().unwrap() as usize,
                token[1].as_u64().unwrap() as usize,
            );
            let label = token[2].as_str().unwrap().split_once('-').unwrap().1;
            let inside = |span: &&(usize, usize, String)| {
                span.0 <= start && end <= span.1 && span.2 == label
            };
            assert_eq!(
                spans.iter().filter(inside).count(),
                1,
                "{token} in {spans:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_callers_at_once_get_each_their_own_and_bulk_comes_in_order() {
    let (model, expected) = (model("text-embed").await, expected("text-embed"));
    let callers = (0..60).map(|caller| {
        let row = &expected[caller % expected.len()];
        let rows = columns(&[("text", vec![row["text"].as_str().unwrap(); 1 + caller % 3])]);
        let model = &model;
        async move {
            let answer = run(model, rows).await.unwrap();
            assert_eq!(answer.num_rows(), 1 + caller % 3);
            for index in 0..answer.num_rows() {
                close(&vector(&answer, index), &row["plain"]);
            }
        }
    });
    let texts = texts_of(&expected);
    let bulk: Vec<&str> = (0..700).map(|row| texts[row % texts.len()]).collect();
    let batch = columns(&[("text", bulk)]);
    let schema = batch.schema();
    let batches = Box::pin(futures::stream::iter(
        (0..5).map(move |_| Ok(batch.clone())),
    ));
    let mut request = asking(columns(&[("text", vec![])]));
    request.input = Input::Stream { schema, batches }.into();
    let streamed = async {
        let mut answer = model.predict(request).await.unwrap();
        let mut rows = 0;
        while let Some(batch) = answer.next().await {
            let batch = batch.unwrap();
            for index in 0..batch.num_rows() {
                close(
                    &vector(&batch, index),
                    &expected[index % expected.len()]["plain"],
                );
            }
            rows += batch.num_rows();
        }
        assert_eq!(rows, 3_500);
    };
    // Some callers leave before they are answered.
    let leavers = (0..20).map(|_| {
        let rows = columns(&[("text", vec![texts[3]; 50])]);
        let model = &model;
        async move {
            let answer = run(model, rows);
            let left = tokio::time::timeout(std::time::Duration::from_micros(50), answer).await;
            drop(left);
        }
    });
    tokio::join!(join_all(callers), streamed, join_all(leavers));
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_rows_are_the_callers_and_the_model_lives_on() {
    let model = model("text-embed").await;
    let null = StringArray::from(vec![Some("a"), None]);
    let null =
        RecordBatch::try_from_iter_with_nullable([("text", Arc::new(null) as ArrayRef, true)]);
    let error = run(&model, null.unwrap()).await.unwrap_err();
    assert!(error.message.contains("row 1"), "{}", error.message);
    let kinds = columns(&[("text", vec!["a"]), ("input_type", vec!["poem"])]);
    let error = run(&model, kinds).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    assert!(error.message.contains("input_type"), "{}", error.message);
    for bad in [0, 17] {
        let mut request = asking(columns(&[("text", vec!["a"])]));
        request
            .parameters
            .set("dimensions", ParamValue::Int(bad))
            .unwrap();
        assert!(model.predict(request).await.is_err());
    }
    let empty = run(&model, columns(&[("text", vec![""])])).await.unwrap();
    assert_eq!(vector(&empty, 0).len(), 16, "special tokens are tokens");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encoder_that_does_not_fit_its_files_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let copy = |name: &str| {
        let target = scratch.path().join(name);
        std::fs::create_dir_all(&target).unwrap();
        for file in ["model.onnx", "config.json", "tokenizer.json"] {
            std::fs::copy(setup::test_model(name).join(file), target.join(file)).unwrap();
        }
        target
    };
    for (name, own, sign) in [
        ("text-embed", "task = \"rerank\"", "shape of its task"),
        ("text-classify", "labels = [\"one\"]", "1 labels"),
        ("text-rerank", "max_length = 0\npool = 1", "model.toml"),
        ("text-rerank", "max_length = 3", "no token is left"),
    ] {
        let directory = copy(name);
        std::fs::write(directory.join("model.toml"), own).unwrap();
        let error = setup::load(&directory).await.err().unwrap();
        assert_eq!(error.code, ErrorCode::InvalidInput, "{}", error.message);
        assert!(error.message.contains(sign), "{}", error.message);
    }
    let directory = copy("text-tokens");
    std::fs::write(directory.join("tokenizer.json"), "{}").unwrap();
    let error = setup::load(&directory).await.err().unwrap();
    assert!(
        error.message.contains("tokenizer.json"),
        "{}",
        error.message
    );
}
