//! What an answer must look like, how many there are, and how likely they were.

use serde_json::{Value, json};
use volley_types::chat::conversations;
use volley_types::*;

use crate::generate::{STORY, Story, read, request, storyteller, tell, tokens};

fn text(name: &'static str, value: &str) -> (&'static str, ParamValue) {
    (name, ParamValue::Text(value.to_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_json_of_the_schema_that_was_asked_for() {
    let model = storyteller().await;
    let schema = json!({
        "type": "object",
        "properties": {
            "animal": { "enum": ["fox", "crow"] },
            "age": { "type": "integer", "minimum": 1, "maximum": 99 },
            "tags": { "type": "array", "items": { "type": "boolean" }, "maxItems": 2 },
        },
        "required": ["animal", "age", "tags"],
        "additionalProperties": false,
    });
    let format = json!({ "type": "json_schema", "json_schema": { "schema": schema } });
    let format = ("response_format", ParamValue::Json(format.to_string()));
    for seed in 0..4 {
        let story = tell(
            &model,
            STORY,
            &[format.clone(), ("seed", ParamValue::Int(seed))],
        )
        .await;
        let story = story.unwrap();
        let text = story.text();
        let answer: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
        assert!(["fox", "crow"].contains(&answer["animal"].as_str().unwrap()));
        assert!((1..=99).contains(&answer["age"].as_i64().unwrap()));
        assert!(answer["tags"].as_array().unwrap().len() <= 2);
        assert_eq!(story.finish, Some(FinishReason::Stop));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_matches_its_expression_or_its_grammar_and_others_are_free() {
    let model = storyteller().await;
    let date = text("guided_regex", "[0-9]{4}-[0-9]{2}-[0-9]{2}");
    let endless = ("ignore_eos", ParamValue::Bool(true));
    let options = [date, endless];
    let (dated, free) = tokio::join!(tell(&model, STORY, &options), tell(&model, STORY, &[]));
    let dated = dated.unwrap().text();
    assert_eq!(dated.len(), 10, "{dated}");
    assert!(dated.chars().all(|c| c == '-' || c.is_ascii_digit()));
    assert!(free.unwrap().text().starts_with("Once"));
    let grammar = text("guided_grammar", "start: (\"ab\" | \"ba\") \"!\"");
    let told = tell(&model, STORY, &[grammar]).await.unwrap().text();
    assert!(["ab!", "ba!"].contains(&told.as_str()), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_that_cannot_be_followed_is_the_callers() {
    let model = storyteller().await;
    for (name, bad) in [
        ("guided_regex", "(".to_owned()),
        ("guided_grammar", "start: nothing".to_owned()),
        ("guided_json", json!({ "type": "colour" }).to_string()),
        ("guided_json", "{".to_owned()),
    ] {
        let error = tell(&model, STORY, &[text(name, &bad)]).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::InvalidInput, "{bad}");
    }
    assert!(tell(&model, STORY, &[tokens(2)]).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn several_answers_to_one_prompt_draw_for_themselves_and_count_it_once() {
    let model = storyteller().await;
    let options = [
        ("n", ParamValue::Int(3)),
        ("seed", ParamValue::Int(1)),
        ("temperature", ParamValue::Float(2.0)),
        tokens(12),
    ];
    let mut chunks = model
        .predict(request(&[STORY, "Hello!"], &options))
        .await
        .unwrap();
    let mut texts = vec![vec![String::new(); 3]; 2];
    let mut whole = Story::default();
    while let Some(batch) = futures::StreamExt::next(&mut chunks).await {
        let batch = batch.unwrap();
        whole.add(&batch);
        for row in GenerationRow::rows(&batch).unwrap() {
            let text = &mut texts[row.item() as usize][row.choice() as usize];
            text.push_str(row.text().unwrap_or_default());
        }
    }
    assert!(
        texts[0][0] != texts[0][1] && texts[0][1] != texts[0][2],
        "{texts:?}"
    );
    let alone = |prompt| {
        let options = [options[1].clone(), options[2].clone(), tokens(12)];
        let model = &model;
        async move { tell(model, prompt, &options).await.unwrap() }
    };
    let (first, second) = (alone(STORY).await, alone("Hello!").await);
    assert_eq!(
        texts[0][0],
        first.text(),
        "the first draws as if it were alone"
    );
    let prompts = first.usage.unwrap().prompt_tokens + second.usage.unwrap().prompt_tokens;
    assert_eq!(whole.usage.unwrap().prompt_tokens, prompts);
    let many = [("n", ParamValue::Int(17))];
    assert!(tell(&model, STORY, &many).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn probabilities_come_with_the_tokens_where_they_are_asked_for() {
    let model = storyteller().await;
    let asked = request(&[STORY], &[("logprobs", ParamValue::Bool(true)), tokens(6)]);
    let mut chunks = model.predict(asked).await.unwrap();
    let mut told = 0;
    while let Some(batch) = futures::StreamExt::next(&mut chunks).await {
        for row in GenerationRow::rows(&batch.unwrap()).unwrap() {
            assert_eq!(row.logprob().is_some(), row.text().is_some());
            if let Some(logprob) = row.logprob() {
                assert!((-20.0..=0.0).contains(&logprob), "{logprob}");
                told += 1;
            }
        }
    }
    assert!(0 < told);
    let error = tell(&model, STORY, &[("top_logprobs", ParamValue::Int(2))]).await;
    assert!(error.unwrap_err().message.contains("top_logprobs"));
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_counted_as_a_generation_counts_them() {
    let model = storyteller().await;
    let only = ("count_tokens", ParamValue::Bool(true));
    for prompt in [STORY, "a", &STORY.repeat(9)] {
        let told = tell(&model, prompt, &[tokens(2)]).await.unwrap();
        let counted = tell(&model, prompt, std::slice::from_ref(&only)).await;
        let counted = counted.unwrap();
        assert_eq!((counted.rows, counted.text().as_str()), (1, ""));
        let (told, counted) = (told.usage.unwrap(), counted.usage.unwrap());
        assert_eq!(counted.prompt_tokens, told.prompt_tokens);
        assert_eq!(counted.completion_tokens, 0);
    }
    // One that leaves no room for an answer is counted all the same.
    let long = "fox ".repeat(1_500);
    assert!(tell(&model, &long, &[]).await.is_err());
    let counted = tell(&model, &long, &[only]).await.unwrap();
    assert!(1_024 < counted.usage.unwrap().prompt_tokens);
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_are_refused_where_the_template_takes_none() {
    let model = storyteller().await;
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let tools = ("tools", ParamValue::Json(tools.to_string()));
    let error = tell(&model, STORY, std::slice::from_ref(&tools))
        .await
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidInput);
    assert!(
        error.message.contains("takes no tools"),
        "{}",
        error.message
    );
    assert!(
        tell(
            &model,
            STORY,
            &[tools, text("tool_choice", "none"), tokens(2)]
        )
        .await
        .is_ok()
    );
    let said = [ChatMessage {
        tool_calls: Some("{}".to_owned()),
        ..ChatMessage::new("assistant", "")
    }];
    let mut bad = request(&[], &[]);
    let column = conversations([Some(said.as_slice())]);
    let batch = arrow_array::RecordBatch::try_from_iter_with_nullable([("messages", column, true)]);
    bad.input = Input::Batch(batch.unwrap());
    let error = read(model.predict(bad).await.unwrap()).await.unwrap_err();
    assert!(error.message.contains("tool_calls"), "{}", error.message);
}
