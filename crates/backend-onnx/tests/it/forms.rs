//! Constrained answers, several answers to one prompt, and log probabilities.

use std::sync::Arc;

use serde_json::{Value, json};
use volley_backend::Backend;
use volley_types::chat::conversations;
use volley_types::*;

use crate::generate::{STORY, Story, read, request, storyteller, tell, tokens};
use crate::setup;

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
}

#[tokio::test(flavor = "multi_thread")]
async fn alternatives_come_with_each_token_the_likeliest_first() {
    let model = storyteller().await;
    let asked = request(&[STORY], &[("top_logprobs", ParamValue::Int(3)), tokens(6)]);
    let mut chunks = model.predict(asked).await.unwrap();
    let (mut text, mut spelled, mut told) = (String::new(), Vec::new(), 0);
    while let Some(batch) = futures::StreamExt::next(&mut chunks).await {
        for row in GenerationRow::rows(&batch.unwrap()).unwrap() {
            text.push_str(row.text().unwrap_or_default());
            let tokens: Vec<Value> =
                serde_json::from_str(row.token_logprobs().unwrap_or("[]")).unwrap();
            for token in &tokens {
                let bytes: Vec<u8> = serde_json::from_value(token["bytes"].clone()).unwrap();
                spelled.extend(bytes);
                let others = token["top_logprobs"].as_array().unwrap();
                let chances: Vec<_> = others
                    .iter()
                    .map(|it| it["logprob"].as_f64().unwrap())
                    .collect();
                assert_eq!(chances.len(), 3);
                assert!(chances.is_sorted_by(|a, b| a >= b), "{chances:?}");
                // Greedy sampling: the chosen token is the most likely one.
                assert_eq!(others[0]["token"], token["token"]);
                assert_eq!(others[0]["logprob"], token["logprob"]);
            }
            told += tokens.len();
        }
    }
    assert_eq!(told, 6);
    assert_eq!(String::from_utf8(spelled).unwrap().trim(), text.trim());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bias_bans_tokens_and_brings_them_about() {
    let model = storyteller().await;
    let plain = tell(&model, STORY, &[tokens(8)]).await.unwrap();
    let first = plain.ids[0];
    let bias = |bias: &Value| ("logit_bias", ParamValue::Json(bias.to_string()));
    let banned = bias(&json!({ first.to_string(): -100 }));
    let other = tell(&model, STORY, &[banned, tokens(8)]).await.unwrap();
    assert!(!other.ids.contains(&first), "{:?}", other.ids);
    let wanted = bias(&json!({ first.to_string(): 100 }));
    let same = tell(&model, STORY, &[wanted, tokens(8)]).await.unwrap();
    assert!(same.ids.iter().all(|id| *id == first), "{:?}", same.ids);
    let unknown = bias(&json!({ "4000000000": 1 }));
    let error = tell(&model, STORY, &[unknown]).await.unwrap_err();
    assert!(error.message.contains("'logit_bias'"), "{}", error.message);
}

/// The storyteller with a chat template that supports tools.
pub(crate) async fn caller(folder: &std::path::Path, template: &str) -> Arc<dyn Backend> {
    caller_with(folder, template, &[], true).await
}

/// The same, with tokens for `marks` instead of the last tokens of its vocabulary.
async fn caller_with(
    folder: &std::path::Path,
    template: &str,
    marks: &[&str],
    special: bool,
) -> Arc<dyn Backend> {
    let folder = &folder.join("caller");
    std::fs::create_dir(folder).unwrap();
    for file in std::fs::read_dir(setup::model_dir("storyteller")).unwrap() {
        let file = file.unwrap();
        if file.file_name() != "chat_template.jinja" {
            std::fs::copy(file.path(), folder.join(file.file_name())).unwrap();
        }
    }
    std::fs::write(folder.join("chat_template.jinja"), template).unwrap();
    let path = folder.join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let model = &mut tokenizer["model"];
    let first = model["vocab"].as_object().unwrap().len() - marks.len();
    let kept = |id: &Value| id.as_u64().unwrap() < first as u64;
    model["vocab"]
        .as_object_mut()
        .unwrap()
        .retain(|_, id| kept(id));
    let vocabulary = model["vocab"].clone();
    let merges = model["merges"].as_array_mut().unwrap();
    merges.retain(|merge| {
        let parts = merge.as_array().unwrap().iter();
        let whole: String = parts.map(|part| part.as_str().unwrap()).collect();
        vocabulary.get(&whole).is_some()
    });
    for (id, mark) in (first..).zip(marks) {
        tokenizer["added_tokens"]
            .as_array_mut()
            .unwrap()
            .push(json!({
                "id": id, "content": mark, "special": special, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false,
            }));
    }
    std::fs::write(&path, tokenizer.to_string()).unwrap();
    setup::load(folder).await.unwrap()
}

const MISTRAL: [&str; 2] = ["[TOOL_CALLS]", "[ARGS]"];
const DEEPSEEK: [&str; 5] = [
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
];

/// Joins the deltas of calls to pairs of name and arguments.
fn joined(rows: &[String]) -> Vec<(String, String)> {
    let mut calls = Vec::<(String, String)>::new();
    for row in rows {
        let deltas: Vec<Value> = serde_json::from_str(row).unwrap();
        for delta in deltas {
            let index = delta["index"].as_u64().unwrap() as usize;
            let function = &delta["function"];
            if index == calls.len() {
                let name = function["name"].as_str().unwrap();
                calls.push((name.to_owned(), String::new()));
            }
            calls[index]
                .1
                .push_str(function["arguments"].as_str().unwrap());
        }
    }
    calls
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_required_is_made_with_arguments_of_its_schema() {
    let schema = json!({
        "type": "object",
        "properties": { "animal": { "$ref": "#/$defs/animal" }, "old": { "type": "boolean" } },
        "required": ["animal", "old"], "additionalProperties": false,
        "$defs": { "animal": { "enum": ["fox", "crow"] } },
    });
    let tool = |name: &str| {
        let function = json!({ "name": name, "parameters": schema });
        json!({ "type": "function", "function": function })
    };
    let tools =
        json!([tool("find"), tool("feed"), { "type": "function", "function": { "name": "rest" } }]);
    let tools = ("tools", ParamValue::Json(tools.to_string()));
    let named = json!({ "type": "function", "function": { "name": "feed" } }).to_string();
    let messages = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}";
    let name = "{{ t.function.name }}";
    for (taught, marks, special) in [
        (format!("<tool_call>{name}</tool_call>"), &[][..], true),
        (name.to_owned(), &[], true),
        (format!("[TOOL_CALLS]{name}[ARGS]"), &MISTRAL, true),
        (format!("{name}<｜tool▁sep｜>"), &DEEPSEEK, true),
        (format!("<｜tool▁sep｜>{name} ```json"), &DEEPSEEK, false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let template =
            format!("{{% for t in tools or [] %}}{taught}{{% endfor %}}{messages}<|assistant|>");
        let model = caller_with(folder.path(), &template, marks, special).await;
        for (choice, parallel, names) in [
            ("required", false, vec!["find", "feed", "rest"]),
            ("required", true, vec!["find", "feed", "rest"]),
            (named.as_str(), true, vec!["feed"]),
        ] {
            // The response format applies to text, not to calls.
            let format = text("response_format", r#"{"type":"json_object"}"#);
            let options = [
                tools.clone(),
                text("tool_choice", choice),
                ("parallel_tool_calls", ParamValue::Bool(parallel)),
                format,
                // Enough tokens for the maximum number of calls.
                tokens(900),
            ];
            let asked = request(&[STORY], &options);
            let mut chunks = model.predict(asked).await.unwrap();
            let (mut calls, mut finish) = (Vec::new(), None);
            while let Some(batch) = futures::StreamExt::next(&mut chunks).await {
                for row in GenerationRow::rows(&batch.unwrap()).unwrap() {
                    assert_eq!(row.text(), None, "a call and nothing else");
                    calls.extend(row.tool_calls().map(str::to_owned));
                    finish = row.finish_reason().or(finish);
                }
            }
            assert_eq!(finish, Some(FinishReason::ToolCalls), "{taught}");
            assert!(1 < calls.len(), "arguments come as they are written");
            let calls = joined(&calls);
            if !parallel || choice != "required" {
                assert_eq!(calls.len(), 1, "{taught}");
            }
            for (name, arguments) in calls {
                assert!(names.contains(&name.as_str()), "{name}");
                assert!(
                    !arguments.contains([' ', '\n']),
                    "it is compact: {arguments}"
                );
                let arguments: Value = serde_json::from_str(&arguments).unwrap();
                if name == "rest" {
                    assert_eq!(arguments, json!({}), "it has no parameters");
                } else {
                    assert!(["fox", "crow"].contains(&arguments["animal"].as_str().unwrap()));
                    assert!(arguments["old"].is_boolean());
                }
            }
        }
        let unknown = text("tool_choice", r#"{"function":{"name":"fly"}}"#);
        let guided = text("guided_regex", "a");
        let required = text("tool_choice", "required");
        for bad in [
            vec![tools.clone(), unknown],
            vec![required.clone()],
            vec![tools.clone(), required, guided],
        ] {
            let error = tell(&model, STORY, &bad).await.unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidInput, "{}", error.message);
        }
    }
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
    // A prompt that leaves no room for an answer is counted too.
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
        error.message.contains("does not support tools"),
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
    bad.input = Input::Batch(batch.unwrap()).into();
    let error = read(model.predict(bad).await.unwrap()).await.unwrap_err();
    assert!(error.message.contains("tool_calls"), "{}", error.message);
}

#[tokio::test(flavor = "multi_thread")]
async fn forms_of_other_servers_are_followed() {
    let model = storyteller().await;
    let answer = async |name: &'static str, form: &str| {
        let story = tell(&model, STORY, &[text(name, form), tokens(200)]).await;
        let story = story.unwrap_or_else(|error| panic!("{name}: {}", error.chain()));
        story.text()
    };
    let choices = r#"["a red fox", "a crow", "C++ (1.0)"]"#;
    for (name, form) in [
        ("guided_choice", choices.to_owned()),
        ("structured_outputs", format!("{{\"choice\": {choices}}}")),
        (
            "grammar",
            "root ::= \"a red fox\" | \"a crow\" | \"C++ (1.0)\"".to_owned(),
        ),
    ] {
        let told = answer(name, &form).await;
        assert!(choices.contains(&format!("\"{told}\"")), "{name}: {told}");
    }
    let nested = "root ::= list\nlist ::= \"[\" (item (\",\" item){0,2})? \"]\"\n\
                  item ::= [0-9]{1,2} | \"fox\" | \"<\" item \">\"";
    let told = answer("grammar", nested).await;
    assert!(told.starts_with('[') && told.ends_with(']'), "{told}");
    let inside = told.replace(['<', '>', '[', ']'], "");
    let is_item = |item: &str| item == "fox" || item.is_empty() || item.parse::<u8>().is_ok();
    assert!(inside.split(',').all(is_item), "{told}");
    let schema = r#"{"type":"object","properties":{"a":{"type":"boolean"},
        "b":{"type":"array","items":{"type":"boolean"},"minItems":2,"maxItems":2}},
        "required":["a","b"]}"#;
    for (name, form) in [
        ("json_schema", schema.to_owned()),
        ("structured_outputs", format!("{{\"json\": {schema}}}")),
        (
            "response_format",
            format!("{{\"type\": \"json_object\", \"schema\": {schema}}}"),
        ),
    ] {
        let told = answer(name, &form).await;
        let value: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(value.to_string(), told, "it is compact");
        assert_eq!(value.as_object().unwrap().len(), 2, "and closed");
    }
}
