use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use futures::StreamExt;
use volley_backend::Backend;
use volley_backend_onnx::OnnxConfig;
use volley_onnx_generate::bare::BareModel;
use volley_types::chat::conversations;
use volley_types::*;

use crate::prompt_tokens::yes;
use crate::setup;

pub(crate) const STORY: &str = "Tell me a story about a fox.";

pub(crate) async fn storyteller() -> Arc<dyn Backend> {
    setup::load(&setup::model_dir("storyteller")).await.unwrap()
}

pub(crate) fn request(prompts: &[&str], parameters: &[(&str, ParamValue)]) -> PredictRequest {
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

/// A complete generation.
#[derive(Debug, Default)]
pub(crate) struct Story {
    pub(crate) texts: Vec<String>,
    pub(crate) ids: Vec<u32>,
    pub(crate) rows: u32,
    pub(crate) finish: Option<FinishReason>,
    pub(crate) usage: Option<Usage>,
    pub(crate) last: bool,
}

impl Story {
    pub(crate) fn text(&self) -> String {
        self.texts.concat()
    }

    pub(crate) fn add(&mut self, batch: &RecordBatch) {
        for row in GenerationRow::rows(batch).unwrap() {
            assert!(!self.last, "nothing follows the last row");
            assert_eq!(row.sequence(), self.rows, "no gap and no duplicate");
            self.rows += 1;
            self.ids.extend(row.token_id());
            self.texts.extend(row.text().map(str::to_owned));
            self.finish = row.finish_reason().or(self.finish);
            self.usage = row.usage().or(self.usage);
            self.last = row.last();
        }
    }
}

/// Reads a complete generation.
pub(crate) async fn read(mut chunks: ChunkStream) -> Result<Story, PredictError> {
    let mut story = Story::default();
    while let Some(batch) = chunks.next().await {
        story.add(&batch?);
    }
    assert!(story.last, "a generation ends in its last row");
    Ok(story)
}

pub(crate) async fn tell(
    model: &Arc<dyn Backend>,
    prompt: &str,
    parameters: &[(&str, ParamValue)],
) -> Result<Story, PredictError> {
    read(model.predict(request(&[prompt], parameters)).await?).await
}

pub(crate) fn tokens(count: i64) -> (&'static str, ParamValue) {
    ("max_tokens", ParamValue::Int(count))
}

pub(crate) fn endless() -> (&'static str, ParamValue) {
    ("ignore_eos", ParamValue::Bool(true))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_greedy_story_is_the_bare_loops_and_counts_its_tokens() {
    let model = storyteller().await;
    let directory = setup::model_dir("storyteller");
    // The second prompt is prefilled in several chunks, but in one by the bare loop.
    let long = format!("{STORY} ").repeat(60);
    for prompt in [STORY, &long] {
        let bare = BareModel::load(&setup::runtime(), &directory, prompt, setup::config());
        let (_, ids) = bare.unwrap().run(1, 24).unwrap();
        let story = tell(&model, prompt, &[tokens(24), endless()])
            .await
            .unwrap();
        assert_eq!(story.ids, ids[0], "token for token");
        assert_eq!(story.finish, Some(FinishReason::Length));
        let usage = story.usage.unwrap();
        assert_eq!(usage.completion_tokens, 24);
        assert!(prompt.split_whitespace().count() <= usage.prompt_tokens as usize);
        if prompt == STORY {
            assert!(story.text().starts_with("Once"), "{}", story.text());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn max_tokens_and_the_context_end_a_story() {
    let model = storyteller().await;
    let one = tell(&model, STORY, &[tokens(1)]).await.unwrap();
    assert_eq!((one.rows, one.finish), (2, Some(FinishReason::Length)));
    assert_eq!(one.usage.unwrap().completion_tokens, 1);
    let full = tell(&model, STORY, &[tokens(1_024), endless()])
        .await
        .unwrap();
    let usage = full.usage.unwrap();
    assert_eq!(full.finish, Some(FinishReason::Length));
    assert_eq!(usage.prompt_tokens + usage.completion_tokens, 1_024);
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
async fn an_item_that_cannot_be_generated_leaves_the_others_alone() {
    let model = storyteller().await;
    let long = "word ".repeat(2_000);
    let prompts = request(&[STORY, &long, "Hello!"], &[tokens(12)]);
    let mut chunks = model.predict(prompts).await.unwrap();
    let (mut texts, mut errors, mut last) = (vec![String::new(); 3], Vec::new(), 0);
    while let Some(batch) = chunks.next().await {
        for row in GenerationRow::rows(&batch.unwrap()).unwrap() {
            texts[row.item() as usize].push_str(row.text().unwrap_or_default());
            errors.extend(row.error().map(|(code, _)| (row.item(), code.to_owned())));
            last += u32::from(row.last());
        }
    }
    assert_eq!(errors, [(1, "invalid_input".to_owned())]);
    assert_eq!(last, 1);
    assert!(!texts[0].is_empty() && texts[1].is_empty() && !texts[2].is_empty());
    let nothing = model.predict(request(&[&long, &long], &[])).await.unwrap();
    assert_eq!(
        read(nothing).await.unwrap_err().code,
        ErrorCode::InvalidInput
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_is_answered() {
    let model = storyteller().await;
    let mut conversation = request(&[], &[]);
    let said = [ChatMessage::new("user", "Who are you?")];
    let chats = conversations([Some(said.as_slice())]);
    let batch = RecordBatch::try_from_iter_with_nullable([("messages", chats, true)]);
    conversation.input = Input::Batch(batch.unwrap()).into();
    let story = read(model.predict(conversation).await.unwrap()).await;
    let same = tell(&model, "Who are you?", &[]).await.unwrap();
    assert_eq!(story.unwrap().text(), same.text());
    assert!(same.text().contains("tiny test model"), "{}", same.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_cannot_be_served_is_refused_when_it_is_loaded() {
    let directory = setup::model_dir("storyteller");
    let config = OnnxConfig {
        slots: 1_000_000_000,
        ..setup::config()
    };
    let error = setup::load_with(&directory, config).await.err().unwrap();
    assert!(error.message.contains("KV cache"), "{}", error.message);
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    for name in ["model.onnx", "model.onnx.data", "tokenizer.json"] {
        std::fs::copy(directory.join(name), copy.join(name)).unwrap();
    }
    let sound = std::fs::read_to_string(directory.join("genai_config.json")).unwrap();
    for (from, to, wanted) in [
        ("\"vocab_size\": 638", "\"vocab_size\": 640", "vocab_size"),
        ("\"head_size\": 32", "\"head_size\": 0", "size is zero"),
        ("past_key_values.%d.key", "past.%d.key", "past.0.key"),
        ("\"model\"", "\"modal\"", "genai_config.json"),
    ] {
        assert!(sound.contains(from));
        std::fs::write(copy.join("genai_config.json"), sound.replace(from, to)).unwrap();
        let error = setup::load(&copy).await.err().unwrap();
        assert_eq!(error.code, ErrorCode::InvalidInput);
        assert!(error.message.contains(wanted), "{}", error.message);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_generated_is_refused() {
    let model = storyteller().await;
    let long = "word ".repeat(2_000);
    let error = tell(&model, &long, &[]).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    assert!(error.message.contains("1024"), "{}", error.message);
    let error = tell(&model, STORY, &[("top_p", ParamValue::Int(2))])
        .await
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    let missing = setup::load(&setup::model_dir("no-such-model")).await;
    assert_eq!(missing.err().unwrap().code, ErrorCode::InvalidInput);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_takes_too_long_is_stopped_and_the_next_one_runs() {
    let config = OnnxConfig {
        // No prompt chunk is prefilled within this time, but most single tokens are decoded.
        run_timeout: Duration::from_millis(1),
        threads: 1,
        ..setup::config()
    };
    let directory = setup::model_dir("storyteller");
    let model = setup::load_with(&directory, config).await.unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    for _ in 0..2 {
        let mut stopped = 0;
        while stopped == 0 && Instant::now() < until {
            // Different prefixes prevent reuse.
            let prompt = format!("{} ", fastrand::u64(..)).repeat(30);
            if let Err(error) = tell(&model, &prompt, &[tokens(1)]).await {
                assert_eq!(error.code, ErrorCode::DeadlineExceeded, "{}", error.chain());
                assert!(error.message.contains("onnx.run_timeout"), "{error}");
                stopped += 1;
            }
        }
        assert_eq!(stopped, 1);
        while tell(&model, STORY, &[tokens(1)]).await.is_err() {
            assert!(Instant::now() < until, "a stop stops all that follow");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_limit_a_story_goes_to_its_end_or_the_context_and_a_larger_one_is_clamped() {
    let model = storyteller().await;
    for parameters in [vec![endless()], vec![endless(), tokens(1_000_000)]] {
        let story = tell(&model, STORY, &parameters).await.unwrap();
        let usage = story.usage.unwrap();
        assert_eq!(story.finish, Some(FinishReason::Length));
        assert_eq!(usage.prompt_tokens + usage.completion_tokens, 1_024);
    }
}

/// The rows of an answer.
pub(crate) async fn rows(
    model: &Arc<dyn Backend>,
    prompt: &str,
    parameters: &[(&str, ParamValue)],
) -> Vec<RecordBatch> {
    let chunks = model.predict(request(&[prompt], parameters)).await.unwrap();
    let batches: Vec<_> = chunks.collect().await;
    batches.into_iter().map(Result::unwrap).collect()
}

pub(crate) fn each(batches: &[RecordBatch]) -> impl Iterator<Item = GenerationRow<'_>> {
    batches
        .iter()
        .flat_map(|batch| GenerationRow::rows(batch).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_row_says_how_long_the_prompt_is() {
    let model = storyteller().await;
    let batches = rows(&model, STORY, &[tokens(3)]).await;
    let first = each(&batches).next().unwrap();
    let last = each(&batches).find_map(|row| row.usage()).unwrap();
    assert_eq!(first.prompt().unwrap().prompt_tokens, last.prompt_tokens);
    let later = each(&batches).skip(1).filter(|row| !row.last());
    assert_eq!(later.filter_map(|row| row.prompt()).count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_ends_at_its_tokens_and_not_before_its_least_length() {
    let model = storyteller().await;
    let plain = tell(&model, STORY, &[tokens(12)]).await.unwrap();
    let stop = plain.ids[5];
    let first = plain.ids.iter().position(|id| *id == stop).unwrap();
    let ids = ParamValue::Json(format!("[{stop}]"));
    let stops = [tokens(12), ("stop_token_ids", ids.clone())];
    let ended = tell(&model, STORY, &stops).await.unwrap();
    assert_eq!(ended.finish, Some(FinishReason::Stop));
    assert_eq!(ended.usage.unwrap().completion_tokens as usize, first + 1);
    assert_eq!(ended.text(), plain.texts[..first].concat());
    let least = [
        tokens(12),
        ("stop_token_ids", ids),
        ("min_tokens", ParamValue::Int(10)),
    ];
    let later = tell(&model, STORY, &least).await.unwrap();
    assert!(10 <= later.usage.unwrap().completion_tokens);
    let word = plain.texts[2].trim().to_owned();
    let without = [tokens(12), ("bad_words", ParamValue::Text(word.clone()))];
    let without = tell(&model, STORY, &without).await.unwrap();
    assert!(
        !without.ids.contains(&plain.ids[2]),
        "{word}: {}",
        without.text()
    );
    let stop = plain.texts[3].clone();
    let included = [
        tokens(12),
        ("stop", ParamValue::Text(stop.clone())),
        yes("include_stop_str_in_output"),
    ];
    let included = tell(&model, STORY, &included).await.unwrap();
    assert!(included.text().ends_with(&stop), "{}", included.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_model_knows_is_refused_with_the_nearest_name() {
    let model = storyteller().await;
    let error = tell(&model, STORY, &[("temprature", ParamValue::Int(1))]).await;
    let error = error.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    assert!(
        error.message.contains("did you mean 'temperature'"),
        "{}",
        error.message
    );
}
