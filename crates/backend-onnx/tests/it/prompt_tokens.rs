//! Requests about tokens, and echoed prompts with log probabilities.

use volley_types::*;

use crate::generate::*;

pub(crate) const fn yes(name: &str) -> (&str, ParamValue) {
    (name, ParamValue::Bool(true))
}

#[tokio::test(flavor = "multi_thread")]
async fn text_goes_to_tokens_and_back_and_tokens_are_a_prompt() {
    let model = storyteller().await;
    let name = ModelRef::deployed(ModelName::new("m").unwrap());
    let signature = model.signature(&name).await.unwrap();
    assert_eq!(signature.context(), Some(1_024));
    let asked = [yes("tokenize"), yes("raw"), yes("return_token_strs")];
    let batches = rows(&model, STORY, &asked).await;
    let row = each(&batches).next().unwrap();
    let ids = row.token_ids().unwrap().values().to_vec();
    assert_eq!(row.usage().unwrap().prompt_tokens as usize, ids.len());
    let told: serde_json::Value = serde_json::from_str(row.token_logprobs().unwrap()).unwrap();
    assert_eq!(told.as_array().unwrap().len(), ids.len());
    let ids = serde_json::to_string(&ids).unwrap();
    let batches = rows(&model, &ids, &[yes("detokenize")]).await;
    assert_eq!(each(&batches).next().unwrap().text(), Some(STORY));
    // Special tokens have a text too, unless they are skipped.
    let marked = format!("<|end|>{STORY}");
    let batches = rows(&model, &marked, &[yes("tokenize"), yes("raw")]).await;
    let marks = each(&batches).next().unwrap().token_ids().unwrap();
    let ids_of_marked = serde_json::to_string(&marks.values().to_vec()).unwrap();
    for (skip, text) in [(false, marked.as_str()), (true, STORY)] {
        let asked = [
            yes("detokenize"),
            ("skip_special_tokens", ParamValue::Bool(skip)),
        ];
        let asked = if skip { &asked[..] } else { &asked[..1] };
        let batches = rows(&model, &ids_of_marked, asked).await;
        assert_eq!(each(&batches).next().unwrap().text(), Some(text));
    }
    let raw = tell(&model, STORY, &[tokens(8), yes("raw")]).await.unwrap();
    let given = tell(&model, &ids, &[tokens(8), yes("token_inputs")]).await;
    assert_eq!(raw.ids, given.unwrap().ids);
    for bad in ["[99999999]", "[]", "[-1]", "fox"] {
        let error = tell(&model, bad, &[tokens(8), yes("token_inputs")]).await;
        assert_eq!(error.unwrap_err().code, ErrorCode::InvalidInput, "{bad}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_is_echoed_has_the_probability_of_each_of_its_tokens() {
    let model = storyteller().await;
    // Longer than one chunk.
    let prompt = "Once upon a time there was a fox who lived in a wood. ".repeat(6);
    let asked = [
        yes("raw"),
        yes("echo"),
        ("logprobs", ParamValue::Int(2)),
        tokens(4),
    ];
    let batches = rows(&model, &prompt, &asked).await;
    let text: String = each(&batches).filter_map(|row| row.text()).collect();
    assert!(text.starts_with(&prompt));
    let told: Vec<serde_json::Value> = each(&batches)
        .filter_map(|row| row.token_logprobs())
        .flat_map(|told| serde_json::from_str::<Vec<serde_json::Value>>(told).unwrap())
        .collect();
    let usage = each(&batches).find_map(|row| row.usage()).unwrap();
    assert_eq!(
        told.len() as u32,
        usage.prompt_tokens + usage.completion_tokens
    );
    assert!(told[0]["logprob"].is_null());
    let likelier = |token: &&serde_json::Value| {
        let (own, best) = (&token["logprob"], &token["top_logprobs"][0]["logprob"]);
        own.as_f64().unwrap() <= best.as_f64().unwrap() + 1e-6
    };
    assert_eq!(told.iter().skip(1).filter(likelier).count(), told.len() - 1);
    // The following tokens have the same probability when they are generated.
    let plain = [yes("raw"), ("logprobs", ParamValue::Int(2)), tokens(4)];
    let plain = rows(&model, &prompt, &plain).await;
    let plain: Vec<serde_json::Value> = each(&plain)
        .filter_map(|row| row.token_logprobs())
        .flat_map(|told| serde_json::from_str::<Vec<serde_json::Value>>(told).unwrap())
        .collect();
    for (one, other) in plain.iter().zip(&told[usage.prompt_tokens as usize..]) {
        assert_eq!(one["token"], other["token"]);
        let apart = one["logprob"].as_f64().unwrap() - other["logprob"].as_f64().unwrap();
        assert!(apart.abs() < 1e-3, "{one} {other}");
    }
    // The same if all of it is a prompt without an answer.
    let only = [
        yes("raw"),
        yes("echo"),
        ("logprobs", ParamValue::Int(2)),
        tokens(0),
    ];
    let only = rows(&model, &text, &only).await;
    let last = each(&only).find_map(|row| row.usage()).unwrap();
    assert_eq!(last.completion_tokens, 0);
    let read: Vec<serde_json::Value> = each(&only)
        .filter_map(|row| row.token_logprobs())
        .flat_map(|told| serde_json::from_str::<Vec<serde_json::Value>>(told).unwrap())
        .collect();
    for (one, other) in read.iter().zip(&told).skip(1) {
        let apart = one["logprob"].as_f64().unwrap() - other["logprob"].as_f64().unwrap();
        assert!(apart.abs() < 1e-3, "{one} {other}");
    }
}

/// Callers that score a text as an echoed prompt must request one token and drop it. They rely on
/// an entry for that token, whichever it is.
#[tokio::test(flavor = "multi_thread")]
async fn the_token_that_ends_an_echoed_text_has_its_probability_too() {
    let model = storyteller().await;
    let beginning = "Once there was a small fox who lived near the bridge.";
    let ids = rows(&model, beginning, &[yes("tokenize")]).await;
    let row = each(&ids).next().unwrap();
    let mut ids = row.token_ids().unwrap().values().to_vec();
    let story = tell(&model, beginning, &[yes("raw"), tokens(400)]).await;
    let story = story.unwrap();
    assert_eq!(story.finish, Some(FinishReason::Stop), "{}", story.text());
    ids.extend(story.ids);
    let prompt = serde_json::to_string(&ids).unwrap();
    for alternatives in [0, 1] {
        let asked = [
            yes("token_inputs"),
            yes("echo"),
            ("logprobs", ParamValue::Int(alternatives)),
            tokens(1),
        ];
        let batches = rows(&model, &prompt, &asked).await;
        let usage = each(&batches).find_map(|row| row.usage()).unwrap();
        assert_eq!(usage.completion_tokens, 1);
        let finish = each(&batches).find_map(|row| row.finish_reason());
        assert_eq!(finish, Some(FinishReason::Stop), "the story ends here");
        let told: Vec<serde_json::Value> = each(&batches)
            .filter_map(|row| row.token_logprobs())
            .flat_map(|told| serde_json::from_str::<Vec<serde_json::Value>>(told).unwrap())
            .collect();
        assert_eq!(told.len() as u32, usage.prompt_tokens + 1);
        let end = told.last().unwrap();
        assert_eq!(end["token"], "<|end|>");
        assert!(end["logprob"].as_f64().unwrap() <= 0.0, "{end}");
    }
}
