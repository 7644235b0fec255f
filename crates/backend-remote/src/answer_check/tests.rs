use super::*;
use crate::tests::provider;

fn delta(calls: &Value, finish: Option<FinishReason>) -> Delta {
    Delta {
        tool_calls: Some(calls.to_string()),
        finish_reason: finish,
        ..Delta::default()
    }
}

#[test]
fn the_input_of_the_tool_is_the_answer() {
    let body = json!({ "tools": [{ "name": ANSWER_TOOL }] });
    let mut check = AnswerCheck::of(provider("anthropic"), &body, &Map::new());
    let begun = json!([{ "index": 0, "id": "a", "function": {
        "name": ANSWER_TOOL, "arguments": "" } }]);
    let mut first = delta(&begun, None);
    check.apply(&mut first).unwrap();
    assert_eq!(first.tool_calls, None);
    let more = json!([{ "index": 0, "function": { "arguments": "{\"a\":1}" } }]);
    let mut more = delta(&more, None);
    check.apply(&mut more).unwrap();
    assert_eq!(more.text.as_deref(), Some("{\"a\":1}"));
    let mut end = Delta {
        finish_reason: Some(FinishReason::ToolCalls),
        ..Delta::default()
    };
    check.apply(&mut end).unwrap();
    assert_eq!(end.finish_reason, Some(FinishReason::Stop));
}

#[test]
fn audio_is_its_transcript_and_an_image_is_an_error_outside_chats() {
    let of = |message: Value| {
        let mut delta = Delta::default();
        let details = delta.details();
        details.format = Some("openai".to_owned());
        details
            .blocks
            .push(json!({ "choice": {}, "delta": message }));
        delta
    };
    let check =
        |dialect| AnswerCheck::of(provider("openai"), &json!({}), &Map::new()).for_caller(dialect);
    for (dialect, said) in [(Dialect::OpenAi, None), (Dialect::Anthropic, Some("hello"))] {
        let mut check = check(dialect);
        let mut spoken = of(json!({ "audio": { "data": "eA==", "transcript": "hello" } }));
        check.apply(&mut spoken).unwrap();
        assert_eq!(spoken.text.as_deref(), said);
        check.finish(FinishReason::Stop).unwrap();
    }
    let mut mute = check(Dialect::Cohere);
    mute.apply(&mut of(json!({ "audio": { "data": "eA==" } })))
        .unwrap();
    let error = mute.finish(FinishReason::Stop).unwrap_err();
    assert!(error.message.contains("'audio'"), "{error:?}");
    let drawn = check(Dialect::Own).apply(&mut of(json!({ "images": [{}] })));
    assert!(drawn.unwrap_err().message.contains("'images'"));
}

#[test]
fn each_token_is_described_only_to_callers_who_ask_for_it() {
    let token = || {
        let mut delta = said("a");
        let details = delta.details();
        details.format = Some("tgi".to_owned());
        details.events.push(json!({ "token": { "id": 3 } }));
        let end = delta.end();
        end.format = Some("tgi".to_owned());
        end.fields = Some(json!({ "event": {} }));
        end.stop_reason = Some("stop_sequence".to_owned());
        delta
    };
    let details = |given: bool| {
        let fields = json!({ "details": given });
        fields.as_object().cloned().unwrap()
    };
    for (dialect, given, is_described) in [
        (Dialect::TextGeneration, false, true),
        (Dialect::Own, true, true),
        (Dialect::Own, false, false),
        (Dialect::OpenAi, false, false),
    ] {
        let check = AnswerCheck::of(provider("tgi"), &json!({}), &details(given));
        let mut delta = token();
        check.for_caller(dialect).apply(&mut delta).unwrap();
        assert_eq!(delta.details.is_some(), is_described, "{dialect:?}");
        let end = delta.end.unwrap();
        assert_eq!(end.fields.is_some(), is_described, "{dialect:?}");
        assert_eq!(end.stop_reason.as_deref(), Some("stop_sequence"));
    }
}

#[test]
fn the_callers_tools_are_called_as_ever() {
    let body = json!({ "toolConfig": { "tools": [
        { "toolSpec": { "name": ANSWER_TOOL } }, { "toolSpec": { "name": "f" } }] } });
    let mut check = AnswerCheck::of(provider("bedrock"), &body, &Map::new());
    let call = json!([{ "index": 0, "id": "a", "function": { "name": "f", "arguments": "{}" } }]);
    let mut called = delta(&call, Some(FinishReason::ToolCalls));
    let before = called.clone();
    check.apply(&mut called).unwrap();
    assert_eq!(called.finish_reason, before.finish_reason);
    let call: Value = serde_json::from_str(&called.tool_calls.unwrap()).unwrap();
    assert_eq!(
        (&call[0]["index"], &call[0]["id"]),
        (&json!(0), &json!("a"))
    );
}

fn said(text: &str) -> Delta {
    Delta {
        text: Some(text.to_owned()),
        ..Delta::default()
    }
}

fn ended(reason: FinishReason) -> Delta {
    Delta {
        finish_reason: Some(reason),
        ..Delta::default()
    }
}

/// Text before the answer tool is dropped, text before a caller's tool is not, and an answer
/// without a call is an error.
#[test]
fn an_object_comes_alone_or_the_answer_is_an_error() {
    let body = json!({ "tools": [{ "name": ANSWER_TOOL }, { "name": "f" }] });
    let form = json!({ "response_format": { "type": "json_object" } });
    let form = form.as_object().unwrap();
    let call = |name: &str, arguments: &str| {
        let call = json!([{ "index": 0, "id": "a", "function": {
            "name": name, "arguments": arguments } }]);
        delta(&call, Some(FinishReason::ToolCalls))
    };
    let check = || AnswerCheck::of(provider("anthropic"), &body, form);
    for (arguments, is_object) in [("{\"a\":1}", true), ("7", false), ("{", false)] {
        let mut check = check();
        let mut before = said("Sure");
        check.apply(&mut before).unwrap();
        assert_eq!(before.text, None);
        let mut answer = call(ANSWER_TOOL, arguments);
        check.apply(&mut answer).unwrap();
        assert_eq!(answer.text.as_deref(), Some(arguments));
        let finished = check.finish(FinishReason::Stop);
        assert_eq!(finished.is_ok(), is_object, "{finished:?}");
    }
    let mut own = check();
    own.apply(&mut said("I look.")).unwrap();
    let mut called = call("f", "{}");
    own.apply(&mut called).unwrap();
    assert_eq!(called.text.as_deref(), Some("I look."));
    own.finish(FinishReason::ToolCalls).unwrap();
    for (reason, text) in [
        (FinishReason::Stop, None),
        (FinishReason::ToolCalls, None),
        (FinishReason::ContentFilter, Some("Sure")),
        (FinishReason::Length, Some("Sure")),
    ] {
        let mut check = check();
        check.apply(&mut said("Sure")).unwrap();
        let mut end = ended(reason);
        check.apply(&mut end).unwrap();
        assert_eq!(end.text.as_deref(), text, "{reason:?}");
        let finished = check.finish(reason);
        assert_eq!(finished.is_err(), text.is_none(), "{reason:?}");
        if let Err(error) = finished {
            assert_eq!(error.code, ErrorCode::UpstreamFailed);
            assert_eq!(error.reason, Some(ErrorReason::AnswerUnusable));
        }
    }
}

#[test]
fn a_second_call_against_the_callers_word_is_an_error() {
    let fields = json!({ "parallel_tool_calls": false })
        .as_object()
        .cloned()
        .unwrap();
    let mut check = AnswerCheck::of(provider("gemini"), &json!({}), &fields);
    let call = |index: u32| json!([{ "index": index, "id": "a", "function": { "name": "f", "arguments": "{}" } }]);
    assert!(check.apply(&mut delta(&call(0), None)).is_ok());
    let error = check.apply(&mut delta(&call(1), None)).unwrap_err();
    assert_eq!(error.code, ErrorCode::UpstreamFailed);
    let mut told = AnswerCheck::of(provider("openai"), &json!({}), &fields);
    assert!(told.apply(&mut delta(&call(1), None)).is_ok());
}

#[test]
fn the_callers_names_of_tools_return() {
    let tools = json!([{ "function": { "name": "files.read" } }]);
    let fields = json!({ "tools": tools }).as_object().cloned().unwrap();
    let rules = provider("bedrock").names;
    let check = AnswerCheck::of(provider("bedrock"), &json!({}), &fields);
    let mut check = check.restoring(rules, &fields);
    assert!(!check.is_plain());
    let sent = provider("bedrock").names.unwrap().tools.fit("files.read");
    let call = json!([{ "index": 0, "id": "c", "function": { "name": sent } }]);
    let mut delta = delta(&call, None);
    check.apply(&mut delta).unwrap();
    assert!(delta.tool_calls.unwrap().contains("\"files.read\""));
}

#[test]
fn a_warning_is_in_the_details_of_the_end_once() {
    let check = AnswerCheck::of(provider("gemini"), &json!({}), &Map::new());
    let mut check = check.warned(Some("moved"));
    let (mut first, mut second) = (Delta::default(), Delta::default());
    check.apply(&mut first).unwrap();
    check.apply(&mut second).unwrap();
    let fields = first.end.unwrap().fields.unwrap();
    assert_eq!(fields["volley-warning"], "moved");
    assert!(second.end.is_none());
}

#[test]
fn an_image_in_a_block_is_an_error_for_callers_of_other_dialects() {
    for (format, own, kind) in [
        ("anthropic", Dialect::Anthropic, "image"),
        (
            "openai_responses",
            Dialect::OpenAiResponses,
            "image_generation_call",
        ),
    ] {
        let made = |dialect| {
            let mut delta = Delta::default();
            let details = delta.details();
            details.format = Some(format.to_owned());
            details
                .blocks
                .push(json!({ "type": kind, "result": "eA==" }));
            let check = AnswerCheck::of(provider("openai"), &json!({}), &Map::new());
            check.for_caller(dialect).apply(&mut delta)
        };
        made(own).unwrap();
        for other in [Dialect::Own, Dialect::OpenAi, Dialect::Cohere] {
            let error = made(other).unwrap_err();
            assert!(error.message.contains(&format!("'{kind}'")), "{error:?}");
        }
    }
}
