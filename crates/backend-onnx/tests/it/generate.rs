use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use futures::StreamExt;
use volley_backend::Backend;
use volley_backend_onnx::bare::BareModel;
use volley_types::*;

use crate::setup;

const STORY: &str = "Tell me a story about a fox.";

async fn storyteller() -> Arc<dyn Backend> {
    setup::load(&setup::model_dir("storyteller")).await.unwrap()
}

fn request(prompts: &[&str], parameters: &[(&str, ParamValue)]) -> PredictRequest {
    let prompts: ArrayRef = Arc::new(StringArray::from(prompts.to_vec()));
    let batch = RecordBatch::try_from_iter_with_nullable([("prompt", prompts, true)]).unwrap();
    let model = ModelRef::deployed(ModelName::new("m").unwrap());
    let mut request = PredictRequest::new(model, Input::Batch(batch));
    let pairs = parameters
        .iter()
        .map(|(name, value)| ((*name).to_owned(), value.clone()));
    request.parameters = pairs.collect();
    request
}

/// A generation as its reader has it.
#[derive(Debug, Default)]
struct Story {
    texts: Vec<String>,
    ids: Vec<u32>,
    items: Vec<(u32, String)>,
    finish: Option<FinishReason>,
    usage: Option<Usage>,
    last: bool,
}

impl Story {
    fn text(&self) -> String {
        self.texts.concat()
    }

    fn add(&mut self, batch: &RecordBatch) {
        for row in GenerationRow::rows(batch).unwrap() {
            assert!(!self.last, "nothing follows the last row");
            assert_eq!(row.sequence() as usize, self.texts.len() + self.items.len());
            self.ids.extend(row.token_id());
            match row.text() {
                Some(text) => self.texts.push(text.to_owned()),
                None => self.items.push((row.item(), String::new())),
            }
            self.finish = row.finish_reason().or(self.finish);
            self.usage = row.usage().or(self.usage);
            self.last = row.last();
        }
    }
}

async fn tell(
    model: &Arc<dyn Backend>,
    prompt: &str,
    parameters: &[(&str, ParamValue)],
) -> Result<Story, PredictError> {
    let mut chunks = model.predict(request(&[prompt], parameters)).await?;
    let mut story = Story::default();
    while let Some(batch) = chunks.next().await {
        story.add(&batch?);
    }
    assert!(story.last, "a generation ends in its last row");
    Ok(story)
}

fn tokens(count: i64) -> (&'static str, ParamValue) {
    ("max_tokens", ParamValue::Int(count))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_greedy_story_is_the_bare_loops_and_counts_its_tokens() {
    let directory = setup::model_dir("storyteller");
    let bare = BareModel::load(&setup::runtime(), &directory, STORY, setup::config());
    let (_, ids) = bare.unwrap().run(1, 24).unwrap();
    let model = storyteller().await;
    let ignore = ("ignore_eos", ParamValue::Bool(true));
    let story = tell(&model, STORY, &[tokens(24), ignore]).await.unwrap();
    let told: Vec<u32> = ids[0]
        .iter()
        .copied()
        .filter(|id| story.ids.contains(id))
        .collect();
    assert_eq!(
        story.ids, told,
        "token for token, but for those without text of their own"
    );
    assert!(story.text().starts_with("Once"), "{}", story.text());
    assert_eq!(story.finish, Some(FinishReason::Length));
    assert_eq!(story.usage.unwrap().completion_tokens, 24);
    assert!(5 < story.usage.unwrap().prompt_tokens);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_story_ends_by_itself() {
    let story = tell(&storyteller().await, STORY, &[tokens(500)])
        .await
        .unwrap();
    assert_eq!(story.finish, Some(FinishReason::Stop));
    assert!(
        !story.text().contains("<|end|>"),
        "special tokens are not text"
    );
    assert!(story.texts.len() > 10, "it came in pieces");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_request_joins_the_running_decode() {
    let model = storyteller().await;
    let long = [tokens(900), ("ignore_eos", ParamValue::Bool(true))];
    let mut first = model.predict(request(&[STORY], &long)).await.unwrap();
    first.next().await.unwrap().unwrap();
    let second = tell(&model, "Hello!", &[tokens(5)]).await.unwrap();
    assert!(second.last);
    // The first is still far from its end: at most what its channel holds is ahead of us.
    let mut rest = Story::default();
    while let Some(batch) = first.next().await {
        let batch = batch.unwrap();
        let rows: Vec<_> = GenerationRow::rows(&batch).unwrap().collect();
        rest.texts
            .extend(rows.iter().filter_map(|row| row.text().map(str::to_owned)));
        rest.usage = rows.iter().find_map(GenerationRow::usage);
    }
    assert_eq!(rest.usage.unwrap().completion_tokens, 900);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_seed_tells_the_same_story_and_another_seed_another() {
    let model = storyteller().await;
    let seeded = |seed| {
        let temperature = ("temperature", ParamValue::Float(1.0));
        let penalty = ("repetition_penalty", ParamValue::Float(1.1));
        [
            tokens(60),
            ("seed", ParamValue::Int(seed)),
            temperature,
            penalty,
        ]
    };
    let one = tell(&model, STORY, &seeded(7)).await.unwrap().text();
    let again = tell(&model, STORY, &seeded(7)).await.unwrap().text();
    let other = tell(&model, STORY, &seeded(8)).await.unwrap().text();
    assert_eq!(one, again);
    assert_ne!(one, other);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_string_ends_the_story_before_it() {
    let model = storyteller().await;
    let whole = tell(&model, STORY, &[tokens(200)]).await.unwrap().text();
    let stop = ("stop", ParamValue::Json("[\"nowhere\", \". \"]".to_owned()));
    let cut = tell(&model, STORY, &[tokens(200), stop]).await.unwrap();
    assert_eq!(cut.finish, Some(FinishReason::Stop));
    assert_eq!(cut.text(), whole.split(". ").next().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn several_prompts_are_one_stream_with_one_end() {
    let model = storyteller().await;
    let mut chunks = model
        .predict(request(&[STORY, "Hello!", STORY], &[tokens(12)]))
        .await
        .unwrap();
    let (mut texts, mut last, mut sequence) = (vec![String::new(); 3], 0, 0);
    while let Some(batch) = chunks.next().await {
        for row in GenerationRow::rows(&batch.unwrap()).unwrap() {
            assert_eq!(row.sequence(), sequence);
            sequence += 1;
            texts[row.item() as usize].push_str(row.text().unwrap_or_default());
            last += u32::from(row.last());
        }
    }
    assert_eq!(last, 1);
    assert_eq!(texts[0], texts[2]);
    assert!(!texts[1].is_empty() && texts[1] != texts[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_who_leaves_or_sleeps_holds_up_nobody() {
    let model = storyteller().await;
    let long = [tokens(1_000), ("ignore_eos", ParamValue::Bool(true))];
    let mut sleepers = Vec::new();
    for _ in 0..setup::config().slots - 1 {
        let mut sleeper = model.predict(request(&[STORY], &long)).await.unwrap();
        sleeper.next().await.unwrap().unwrap();
        sleepers.push(sleeper);
    }
    let awake = tell(&model, STORY, &[tokens(100)]).await.unwrap();
    assert!(awake.last);
    drop(sleepers);
    // Their slots are free again: as many stories as there are slots run at once.
    let short = [tokens(20)];
    let stories = (0..setup::config().slots).map(|_| tell(&model, STORY, &short));
    let told = tokio::time::timeout(Duration::from_secs(20), futures::future::join_all(stories));
    assert!(
        told.await
            .unwrap()
            .into_iter()
            .all(|story| story.unwrap().last)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_generated_is_refused() {
    let model = storyteller().await;
    let long = "word ".repeat(2_000);
    let error = tell(&model, &long, &[]).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::TooLarge);
    assert!(error.message.contains("1024"), "{}", error.message);
    let error = tell(&model, STORY, &[("top_p", ParamValue::Int(2))])
        .await
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    let missing = setup::load(&setup::model_dir("no-such-model")).await;
    assert_eq!(missing.err().unwrap().code, ErrorCode::InvalidInput);
}
