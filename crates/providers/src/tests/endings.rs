//! The ends of answers of all providers: only known good reasons are successes.

use volley_provider_kit::calls::ToolCallAccumulator;
use volley_provider_kit::step::{Delta, Step};
use volley_types::FinishReason::{ContentFilter, Length, Stop};

use super::*;

/// The last event and the whole answer of a provider with this finish reason.
fn answers(provider: &str, reason: &str) -> [Value; 2] {
    match provider {
        "openai" => [
            json!({ "choices": [{ "index": 0, "delta": { "content": "x" }, "finish_reason": reason }] }),
            json!({ "choices": [{ "index": 0, "message": { "content": "x" }, "finish_reason": reason }] }),
        ],
        "gemini" => {
            let answer = json!({ "candidates": [{
                "content": { "parts": [{ "text": "x" }] }, "finishReason": reason }] });
            [answer.clone(), answer]
        }
        "bedrock" => [
            json!({ "messageStop": { "stopReason": reason } }),
            json!({ "output": { "message": { "content": [{ "text": "x" }] } }, "stopReason": reason }),
        ],
        "anthropic" => [
            json!({ "type": "message_delta", "delta": { "stop_reason": reason } }),
            json!({ "type": "message", "content": [{ "type": "text", "text": "x" }], "stop_reason": reason }),
        ],
        "cohere" => [
            json!({ "type": "message-end", "delta": { "finish_reason": reason } }),
            json!({ "message": { "content": [{ "type": "text", "text": "x" }] }, "finish_reason": reason }),
        ],
        "openai_responses" => {
            let response = json!({ "status": reason, "output": [] });
            [
                json!({ "type": "response.completed", "response": response }),
                response,
            ]
        }
        "ollama" => {
            let line =
                json!({ "message": { "content": "x" }, "done": true, "done_reason": reason });
            [line.clone(), line]
        }
        "tgi" => {
            let event = json!({ "generated_text": "x", "details": { "finish_reason": reason } });
            [event.clone(), event]
        }
        other => panic!("{other}"),
    }
}

#[expect(
    clippy::result_large_err,
    reason = "a test shows the step that it did not expect"
)]
fn last(step: Step) -> Result<Delta, Step> {
    match step {
        Step::Delta(delta) | Step::Last(delta) => Ok(delta),
        Step::All(mut deltas) => Ok(deltas.pop().unwrap()),
        other => Err(other),
    }
}

/// The results for an event and for a whole answer.
fn read(provider: &str, reason: &str) -> [Result<Delta, Step>; 2] {
    let known = named(provider).unwrap();
    let [event, whole] = answers(provider, reason);
    let calls = &mut ToolCallAccumulator::default();
    let event = (known.read)(&event.to_string(), calls).unwrap();
    let whole = (known.read_whole)(whole.to_string().as_bytes(), calls).unwrap();
    [last(event), last(whole)]
}

#[test]
fn only_known_good_reasons_are_a_stop() {
    for (provider, reason, expected) in [
        ("openai", "stop", Some(Stop)),
        ("openai", "eos", Some(Stop)),
        ("openai", "sensitive", Some(ContentFilter)),
        ("openai", "abort", None),
        ("mistral", "model_length", Some(Length)),
        ("gemini", "STOP", Some(Stop)),
        ("gemini", "MODEL_ARMOR", Some(ContentFilter)),
        ("gemini", "ESCALATION", Some(ContentFilter)),
        ("gemini", "OTHER", Some(ContentFilter)),
        ("gemini", "NO_IMAGE", Some(ContentFilter)),
        ("gemini", "IMAGE_OTHER", Some(ContentFilter)),
        ("gemini", "CONTINUATION", Some(Length)),
        ("gemini", "MALFORMED_RESPONSE", None),
        ("gemini", "MALFORMED_FUNCTION_CALL", None),
        ("gemini", "MISSING_THOUGHT_SIGNATURE", None),
        ("gemini", "LATER", None),
        ("bedrock", "end_turn", Some(Stop)),
        ("bedrock", "malformed_tool_use", None),
        ("bedrock", "malformed_model_output", None),
        ("bedrock", "later", None),
        ("anthropic", "end_turn", Some(Stop)),
        ("anthropic", "pause_turn", Some(Length)),
        ("anthropic", "later", None),
        ("cohere", "COMPLETE", Some(Stop)),
        ("cohere", "STOP_SEQUENCE", Some(Stop)),
        ("cohere", "USER_CANCEL", None),
        ("openai_responses", "incomplete", Some(Length)),
        ("openai_responses", "cancelled", None),
        ("openai_responses", "queued", None),
        ("ollama", "stop", Some(Stop)),
        ("ollama", "later", None),
        ("tgi", "eos_token", Some(Stop)),
        ("tgi", "later", None),
    ] {
        let form = if provider == "mistral" {
            "openai"
        } else {
            provider
        };
        for read in read(form, reason) {
            let delta = read.unwrap();
            assert_eq!(delta.finish_reason, expected, "{provider} {reason}");
            let why = delta.unusable.unwrap_or_default();
            assert_eq!(
                why.contains(reason),
                expected.is_none(),
                "{provider}: {why}"
            );
        }
    }
}

#[test]
fn an_end_that_is_the_servers_failure_has_its_code() {
    for (provider, reason, code) in [
        ("openai", "error", None),
        ("openai", "network_error", None),
        ("cohere", "ERROR", None),
        ("cohere", "TIMEOUT", Some(ErrorCode::UpstreamTimeout)),
    ] {
        for read in read(provider, reason) {
            let (given, message) = match read {
                Err(Step::Failed(message)) => (None, message),
                Err(Step::Refused(code, message)) => (Some(code), message),
                other => panic!("{provider} {reason}: {other:?}"),
            };
            assert_eq!(given, code, "{provider} {reason}");
            assert!(message.contains(reason), "{message}");
        }
    }
}

/// The text in the event of a bad end is kept.
#[test]
fn text_beside_a_bad_end_is_read() {
    for (provider, reason) in [("openai", "abort"), ("gemini", "MALFORMED_RESPONSE")] {
        for read in read(provider, reason) {
            assert_eq!(read.unwrap().text.as_deref(), Some("x"));
        }
    }
}

/// Content without a text form is an error that names its kind, whole and in a stream.
#[test]
fn content_without_a_text_form_is_named() {
    let image = json!({ "candidates": [{ "content": { "parts": [
        { "text": "x" }, { "inlineData": { "mimeType": "image/png", "data": "eA==" } }] },
        "finishReason": "STOP" }] });
    let drawn = json!({ "text": "x" });
    let picture = json!({ "image": { "format": "png", "source": { "bytes": "eA==" } } });
    let parts = json!([{ "type": "text", "text": "x" },
        { "type": "image_url", "image_url": { "url": "https://x/" } }]);
    for (provider, event, whole, kind) in [
        ("gemini", image.clone(), image, "inlineData"),
        (
            "bedrock",
            json!({ "contentBlockDelta": { "contentBlockIndex": 1, "delta": picture } }),
            json!({ "output": { "message": { "content": [drawn, picture] } }, "stopReason": "end_turn" }),
            "image",
        ),
        (
            "bedrock",
            json!({ "contentBlockStart": { "contentBlockIndex": 1, "start": { "image": { "format": "png" } } } }),
            json!({ "output": { "message": { "content": [{ "video": {} }] } }, "stopReason": "end_turn" }),
            "",
        ),
        (
            "mistral",
            json!({ "choices": [{ "index": 0, "delta": { "content": parts } }] }),
            json!({ "choices": [{ "index": 0, "message": { "content": parts }, "finish_reason": "stop" }] }),
            "image_url",
        ),
    ] {
        let known = named(provider).unwrap();
        let calls = &mut ToolCallAccumulator::default();
        let event = (known.read)(&event.to_string(), calls).unwrap();
        let whole = (known.read_whole)(whole.to_string().as_bytes(), calls).unwrap();
        for read in [event, whole] {
            let why = last(read).unwrap().unusable.unwrap();
            assert!(why.contains(kind), "{provider}: {why}");
        }
    }
}

#[test]
fn code_that_ran_at_the_provider_is_text() {
    let answer = json!({ "candidates": [{ "content": { "parts": [
        { "text": "So:" },
        { "executableCode": { "language": "PYTHON", "code": "print(1)\n" } },
        { "codeExecutionResult": { "outcome": "OUTCOME_OK", "output": "1\n" } },
        { "thoughtSignature": "c2ln" }] }, "finishReason": "STOP" }] });
    let known = named("gemini").unwrap();
    let read = (known.read)(&answer.to_string(), &mut ToolCallAccumulator::default());
    let delta = last(read.unwrap()).unwrap();
    let expected = "So:\n```python\nprint(1)\n```\n\n```\n1\n```\n";
    assert_eq!(
        (delta.text.as_deref(), delta.unusable),
        (Some(expected), None)
    );
}
