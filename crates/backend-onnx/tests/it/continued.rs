//! Continuation on another replica: wherever a generation is lost, the continuation equals the lost
//! part.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::RecordBatch;
use futures::StreamExt;
use serde_json::{Value, json};
use volley_backend::Backend;
use volley_types::continuation::SentAnswerRecorder;
use volley_types::*;

use crate::forms::caller;
use crate::generate::{STORY, endless, request, storyteller, tokens};
use crate::setup;

type Parameters<'a> = &'a [(&'a str, ParamValue)];

fn asked(prompts: &[&str], parameters: Parameters<'_>) -> PredictRequest {
    let mut request = request(prompts, parameters);
    request.continuation = Continuation::beginning(11);
    request
}

fn text<'a>(name: &'a str, value: &str) -> (&'a str, ParamValue) {
    (name, ParamValue::Text(value.to_owned()))
}

/// The rows of an answer, each in its own batch.
async fn rows(model: &Arc<dyn Backend>, request: PredictRequest) -> Vec<RecordBatch> {
    let mut chunks = model.predict(request).await.unwrap();
    let mut rows = Vec::new();
    while let Some(batch) = chunks.next().await {
        let batch = batch.unwrap();
        rows.extend((0..batch.num_rows()).map(|row| batch.slice(row, 1)));
    }
    rows
}

fn only(batch: &RecordBatch) -> GenerationRow<'_> {
    GenerationRow::rows(batch).unwrap().next().unwrap()
}

/// The content of a row, without its sequence number.
fn said(batch: &RecordBatch) -> String {
    let row = only(batch);
    let json = |text: Option<&str>| text.map(|text| serde_json::from_str::<Value>(text).unwrap());
    // Each call gets a new random id, and the last bits of a number depend on the processor.
    let calls = json(row.tool_calls()).map(|calls| calls[0]["function"].clone());
    let logprob = row
        .logprob()
        .map(|logprob| (logprob * 100.0).round() as i64);
    let alternatives = json(row.token_logprobs()).map(|told| {
        let tokens = told.as_array().unwrap().iter();
        tokens
            .map(|token| token["top_logprobs"].as_array().unwrap().len())
            .collect::<Vec<_>>()
    });
    let ids = row.token_ids().map(|ids| ids.values().to_vec());
    format!(
        "{:?} {calls:?} {logprob:?} {alternatives:?} {:?} {ids:?} {:?} {:?}",
        row.text(),
        row.token_id(),
        row.finish_reason(),
        row.error().map(|(code, _)| code)
    )
}

/// The content of each answer. Rows of concurrent answers arrive in any order.
fn by_answer(rows: &[RecordBatch]) -> BTreeMap<(u32, u32), Vec<String>> {
    let mut answers = BTreeMap::<_, Vec<String>>::new();
    for batch in rows {
        let row = only(batch);
        let answer = answers.entry((row.item(), row.choice())).or_default();
        answer.push(said(batch));
    }
    answers
}

/// As [`lose_of`], with two storytellers.
async fn lose(prompts: &[&str], parameters: Parameters<'_>, step: usize) -> String {
    let models = [storyteller().await, storyteller().await];
    lose_of(&models, prompts, parameters, step).await
}

/// Aborts the stream after each of its rows in turn, `step` rows apart, and compares the
/// continuation on another replica. Returns the text of the first answer.
async fn lose_of(
    [one, other]: &[Arc<dyn Backend>; 2],
    prompts: &[&str],
    parameters: Parameters<'_>,
    step: usize,
) -> String {
    let whole = rows(one, asked(prompts, parameters)).await;
    let end = only(whole.last().unwrap());
    let mut recorder = SentAnswerRecorder::default();
    for (at, row) in whole.iter().enumerate() {
        assert!(recorder.note(row), "row {at} has its place");
        let Some(sent) = recorder.sent() else {
            assert!(only(row).last(), "what goes on can be gone on with");
            continue;
        };
        if at % step != 0 {
            continue;
        }
        let mut again = asked(prompts, parameters);
        again.continuation = again.continuation.behind(sent);
        let rest = rows(other, again).await;
        let (rest_said, expected) = (by_answer(&rest), by_answer(&whole[at + 1..]));
        for (place, expected) in &expected {
            let found = &rest_said[place];
            let differs = found
                .iter()
                .zip(expected)
                .position(|(one, other)| one != other);
            let pair = differs.map(|at| (at, &found[at], &expected[at]));
            assert_eq!(pair, None, "behind row {at}, of {place:?}");
            assert_eq!(found.len(), expected.len(), "behind row {at}, of {place:?}");
        }
        assert_eq!(rest_said.len(), expected.len());
        for (index, row) in rest.iter().enumerate() {
            let row = only(row);
            assert_eq!(
                row.sequence() as usize,
                at + 1 + index,
                "no gap, no duplicate"
            );
            assert_eq!(row.last(), index + 1 == rest.len());
        }
        let usage = only(rest.last().unwrap()).usage();
        assert_eq!(usage, end.usage(), "counted as though it had never stopped");
    }
    let first = whole
        .iter()
        .map(only)
        .filter(|row| (row.item(), row.choice()) == (0, 0));
    first
        .filter_map(|row| row.text().map(str::to_owned))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_greedy_story_goes_on_behind_any_of_its_rows() {
    let story = lose(&[STORY], &[tokens(48)], 1).await;
    assert!(story.starts_with("Once"), "{story}");
    // Until the story ends by itself.
    lose(&[STORY], &[tokens(500)], 60).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_no_words_goes_on_to_the_contexts_end() {
    let directory = setup::test_model("plain-decoder");
    let load = || async { setup::load(&directory).await.unwrap() };
    let models = [load().await, load().await];
    let prompt = ["Once upon a time"];
    // Tokens of random weights: partial characters, and invalid bytes.
    let told = lose_of(&models, &prompt, &[tokens(128), endless()], 1).await;
    assert!(told.contains(char::REPLACEMENT_CHARACTER), "{told}");
    let drawn = [
        tokens(100),
        endless(),
        ("seed", ParamValue::Int(1)),
        ("min_p", ParamValue::Float(0.05)),
        ("presence_penalty", ParamValue::Float(0.7)),
    ];
    lose_of(&models, &prompt, &drawn, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn draws_go_on_from_the_requests_seed_or_from_the_clusters() {
    let sampled = [
        tokens(40),
        ("temperature", ParamValue::Float(1.0)),
        ("top_p", ParamValue::Float(0.95)),
        ("frequency_penalty", ParamValue::Float(0.5)),
        ("repetition_penalty", ParamValue::Float(1.1)),
    ];
    let assigned = lose(&[STORY], &sampled, 1).await;
    let seeded = [&sampled[..], &[("seed", ParamValue::Int(3))]].concat();
    let own = lose(&[STORY], &seeded, 1).await;
    assert_ne!(assigned, own, "a request's own seed wins");
    let top_k = [tokens(40), ("top_k", ParamValue::Int(20))];
    lose(&[STORY], &top_k, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_holds_over_the_seam() {
    let schema = json!({
        "type": "object",
        "properties": { "name": { "type": "string", "maxLength": 8 }, "old": { "type": "boolean" } },
        "required": ["name", "old"],
        "additionalProperties": false,
    });
    let told = lose(
        &[STORY],
        &[text("guided_json", &schema.to_string()), tokens(200)],
        1,
    )
    .await;
    let told: Value = serde_json::from_str(&told).unwrap();
    assert!(
        told["name"].is_string() && told["old"].is_boolean(),
        "{told}"
    );
    // Characters that consist of several tokens.
    let told = lose(
        &[STORY],
        &[text("guided_regex", "(é|€|😀){6}"), tokens(100)],
        1,
    )
    .await;
    assert_eq!(told.chars().count(), 6, "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_string_is_found_over_the_seam() {
    let whole = lose(&[STORY], &[tokens(60)], 60).await;
    // The stop string begins in many places and never completes, so its possible beginning is held
    // back.
    let near = format!("{}…", whole.chars().take(30).collect::<String>());
    let stops = json!([near, "unheard of"]).to_string();
    assert_eq!(
        lose(&[STORY], &[text("stop", &stops), tokens(60)], 1).await,
        whole
    );
    let at = whole
        .char_indices()
        .nth(whole.chars().count() / 2)
        .unwrap()
        .0;
    let stop: String = whole[at..].chars().take(12).collect();
    let stops = json!([stop]).to_string();
    let cut = lose(&[STORY], &[text("stop", &stops), tokens(60)], 1).await;
    assert_eq!(cut, whole.split(&stop).next().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_answers_each_goes_on_from_where_it_was() {
    let long = "word ".repeat(2_000);
    let several = [
        tokens(14),
        ("n", ParamValue::Int(2)),
        ("temperature", ParamValue::Float(1.0)),
        text("stop", "[\" a\", \".\"]"),
    ];
    lose(&[STORY, &long, "Hello!"], &several, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_and_probabilities_go_on() {
    let tool = json!([{ "type": "function", "function": {
        "name": "look_up",
        "parameters": { "type": "object", "properties": { "word": { "type": "string", "maxLength": 6 } },
            "required": ["word"], "additionalProperties": false },
    } }]);
    let call = [
        text("tools", &tool.to_string()),
        text("tool_choice", "required"),
        tokens(120),
    ];
    let template = "{% for t in tools or [] %}<tool_call>{% endfor %}\
                    {% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}\
                    <|assistant|>";
    let folder = tempfile::tempdir().unwrap();
    let model = caller(folder.path(), template).await;
    let models = [model.clone(), model];
    lose_of(&models, &[STORY], &call, 1).await;
    // The model may call, but tells a story.
    let free = [text("tools", &tool.to_string()), tokens(24)];
    lose_of(&models, &[STORY], &free, 1).await;
    let probable = [
        tokens(24),
        ("logprobs", ParamValue::Bool(true)),
        ("top_logprobs", ParamValue::Int(3)),
    ];
    lose(&[STORY], &probable, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_never_told_so_is_refused() {
    let model = storyteller().await;
    let whole = rows(&model, asked(&[STORY], &[tokens(8)])).await;
    let mut recorder = SentAnswerRecorder::default();
    whole[..4]
        .iter()
        .for_each(|row| assert!(recorder.note(row)));
    let good = recorder.sent().unwrap().answers()[0].clone();
    let bad = [
        SentAnswer {
            item: 1,
            ..good.clone()
        },
        SentAnswer {
            choice: 1,
            ..good.clone()
        },
        SentAnswer {
            rows: good.rows + 1,
            ..good.clone()
        },
        SentAnswer {
            rows: good.rows - 1,
            ..good.clone()
        },
        SentAnswer {
            text_bytes: 0,
            ..good.clone()
        },
        SentAnswer {
            tokens: vec![u32::MAX; 4],
            ..good.clone()
        },
        SentAnswer {
            tokens: vec![5; 2_000],
            ..good.clone()
        },
        SentAnswer {
            end: Some(AnswerEnd::Whole),
            ..good.clone()
        },
    ];
    for answer in bad {
        let mut again = asked(&[STORY], &[tokens(8)]);
        let sent = SentAnswers::new(vec![answer.clone()]).unwrap();
        again.continuation = again.continuation.behind(sent);
        let mut chunks = model.predict(again).await.unwrap();
        let error = chunks.next().await.unwrap().unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidInput, "{answer:?}");
    }
}
