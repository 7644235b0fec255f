//! The two always-compiled backends, asked as a worker asks them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use futures::StreamExt;
use volley_backend::fake::FakeLoader;
use volley_backend::text::TextLoader;
use volley_backend::{Backend, BackendLoader};
use volley_types::registry::{Assignment, BackendName, ModelSource, ModelVersionSpec};
use volley_types::*;

fn assignment(backend: BackendName, parameters: Parameters) -> Assignment {
    Assignment {
        model: ModelName::new("m").unwrap(),
        spec: ModelVersionSpec {
            version: ModelVersion(1),
            backend,
            source: ModelSource::None,
            parameters,
            description: String::new(),
            created_ms: 0,
        },
        connector: None,
    }
}

fn parameters(pairs: &[(&str, &str)]) -> Parameters {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), ParamValue::Text((*value).to_owned())))
        .collect()
}

fn request(prompts: &[&str], given: &[(&str, &str)]) -> PredictRequest {
    let prompts: ArrayRef = Arc::new(StringArray::from(prompts.to_vec()));
    let batch = RecordBatch::try_from_iter_with_nullable([("prompt", prompts, true)]).unwrap();
    let model = ModelRef::deployed(ModelName::new("m").unwrap());
    let mut request = PredictRequest::new(model, Input::Batch(batch));
    request.parameters = parameters(given);
    request
}

/// The texts of all rows, and how the stream ended.
async fn read(stream: ChunkStream) -> (Vec<String>, Result<bool, ErrorCode>) {
    let (mut texts, mut last) = (Vec::new(), false);
    futures::pin_mut!(stream);
    while let Some(batch) = stream.next().await {
        match batch {
            Ok(batch) => {
                for row in GenerationRow::rows(&batch).unwrap() {
                    texts.extend(row.text().map(str::to_owned));
                    last = row.last();
                }
            }
            Err(error) => return (texts, Err(error.code)),
        }
    }
    (texts, Ok(last))
}

async fn fake(model: &[(&str, &str)]) -> (FakeLoader, Result<Arc<dyn Backend>, PredictError>) {
    let loader = FakeLoader::default();
    let loaded = loader
        .load(&assignment(BackendName::FAKE, parameters(model)))
        .await;
    (loader, loaded)
}

#[tokio::test]
async fn words_come_back_one_by_one_and_spell_the_prompt() {
    let text = TextLoader
        .load(&assignment(BackendName::TEXT, Parameters::default()))
        .await
        .unwrap();
    let stream = text
        .predict(request(&["one  two\nthree", "four"], &[]))
        .await
        .unwrap();
    let (texts, end) = read(stream).await;
    assert_eq!(texts, ["one ", " ", "two\n", "three", "four"]);
    assert_eq!(end, Ok(true));
    let asked = request(&["one two", "three"], &[("count_tokens", "true")]);
    let (texts, end) = read(text.predict(asked).await.unwrap()).await;
    assert_eq!((texts.len(), end), (0, Ok(true)), "counted, and not told");
    let refused = text
        .predict(request(&["x"], &[("delay_ms", "soon")]))
        .await
        .unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidInput);
}

#[tokio::test]
async fn the_fake_does_what_the_script_says() {
    let (_, fake) = fake(&[]).await;
    let fake = fake.unwrap();
    let story = |given: &'static [(&str, &str)]| {
        let fake = fake.clone();
        async move { read(fake.predict(request(&["x"], given)).await.unwrap()).await }
    };
    let counted = story(&[("chunks", "2"), ("text", "t{n}")]).await;
    assert_eq!(counted, (vec!["t0".to_owned(), "t1".to_owned()], Ok(true)));
    let failed = story(&[("fail_after", "1"), ("fail_code", "upstream_failed")]).await;
    assert_eq!(
        failed,
        (vec!["chunk".to_owned()], Err(ErrorCode::UpstreamFailed))
    );
    let cut = story(&[("end_after", "1")]).await;
    assert_eq!(cut, (vec!["chunk".to_owned()], Ok(false)));
}

#[tokio::test]
async fn a_models_parameters_are_defaults_and_the_requests_own_win() {
    let (_, fake) = fake(&[("chunks", "2"), ("text", "model")]).await;
    let fake = fake.unwrap();
    let asked = |given: &[(&str, &str)]| fake.predict(request(&["x"], given));
    let (texts, _) = read(asked(&[]).await.unwrap()).await;
    assert_eq!(texts, ["model", "model"]);
    let (texts, _) = read(asked(&[("text", "mine")]).await.unwrap()).await;
    assert_eq!(texts, ["mine", "mine"]);

    let never = parameters(&[("delay_ms", "60001")]);
    let text = TextLoader
        .load(&assignment(BackendName::TEXT, never))
        .await
        .unwrap();
    let refused = text.predict(request(&["x"], &[])).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidInput);
    let own = text.predict(request(&["x"], &[("delay_ms", "0")])).await;
    assert_eq!(read(own.unwrap()).await.1, Ok(true));
}

#[tokio::test]
async fn sequences_run_over_the_whole_stream_whatever_the_item() {
    let text = TextLoader
        .load(&assignment(BackendName::TEXT, Parameters::default()))
        .await
        .unwrap();
    let mut stream = text.predict(request(&["a b", "c"], &[])).await.unwrap();
    let mut places = Vec::new();
    while let Some(batch) = stream.next().await {
        let batch = batch.unwrap();
        let rows = GenerationRow::rows(&batch).unwrap();
        places.extend(rows.map(|row| (row.item(), row.sequence())));
    }
    assert_eq!(places, [(0, 0), (0, 1), (1, 2), (1, 3)]);
}

#[tokio::test]
async fn the_fake_counts_what_is_dropped_and_fails_to_load_on_demand() {
    let (loader, loaded) = fake(&[("capacity", "3")]).await;
    let loaded = loaded.unwrap();
    assert_eq!(loaded.capacity(), 3);
    let mut stream = loaded
        .predict(request(&["x"], &[("stall_after", "1")]))
        .await
        .unwrap();
    stream.next().await.unwrap().unwrap();
    drop(stream);
    assert_eq!(loader.tally().cancelled.load(Ordering::Relaxed), 1);
    let (_, failed) = fake(&[("load_error", "no such file")]).await;
    assert_eq!(failed.err().unwrap().message, "no such file");
}
