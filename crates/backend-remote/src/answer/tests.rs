use proptest::prelude::*;
use serde_json::json;
use volley_provider_kit::provider::Provider;
use volley_types::{ErrorCode, ErrorReason};

use super::*;
use crate::tests::provider;

const OPENAI: &str = concat!(
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
    ": ping\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Gr\u{fc}\u{df}e \"}}]}\r\n\r\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\u{1f98a}\"},\"finish_reason\":\"length\"}]}\n\n",
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":3}}\n\n",
    "data: [DONE]\n\n",
);
const ANTHROPIC: &str = concat!(
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":2,\"output_tokens\":1}}}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Gr\u{fc}\u{df}e \u{1f98a}\"}}\n\n",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"max_tokens\"},\"usage\":{\"output_tokens\":3}}\n\n",
    "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
);
const COHERE: &str = concat!(
    "event: message-start\ndata: {\"type\":\"message-start\",\"delta\":{\"message\":{\"content\":[]}}}\n\n",
    "event: content-delta\ndata: {\"type\":\"content-delta\",\"index\":0,\"delta\":{\"message\":{\"content\":{\"text\":\"Gr\u{fc}\u{df}e \u{1f98a}\"}}}}\n\n",
    "event: message-end\ndata: {\"type\":\"message-end\",\"delta\":{\"finish_reason\":\"MAX_TOKENS\"}}\n\n",
);
const OLLAMA: &str = concat!(
    "{\"model\":\"m\",\"message\":{\"role\":\"assistant\",\"content\":\"Gr\u{fc}\u{df}e \"},\"done\":false}\n",
    "{\"model\":\"m\",\"message\":{\"role\":\"assistant\",\"content\":\"\u{1f98a}\"},\"done\":false}\n",
    "{\"model\":\"m\",\"message\":{\"content\":\"\"},\"done\":true,\"done_reason\":\"length\",\"eval_count\":3}\n",
);
const GEMINI: &str = concat!(
    "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"Gr\u{fc}\u{df}e \"}]}}]}\r\n\r\n",
    "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"\u{1f98a}\"}]},\"finishReason\":\"MAX_TOKENS\"}]}\r\n\r\n",
);
const STREAMS: [(&str, &str); 5] = [
    ("openai", OPENAI),
    ("anthropic", ANTHROPIC),
    ("cohere", COHERE),
    ("ollama", OLLAMA),
    ("gemini", GEMINI),
];

/// Text, whether the end was read, and the failure, of an answer in these chunks.
fn play(name: &str, pieces: &[&[u8]]) -> (String, bool, Option<ErrorCode>) {
    let (mut answer, mut text, mut ended) =
        (UpstreamAnswer::new(provider(name), 0), String::new(), false);
    let pieces = pieces
        .iter()
        .map(|piece| Some(Bytes::copy_from_slice(piece)));
    for piece in pieces.chain([None]) {
        let part = answer.read(piece, str::to_owned);
        for delta in part.deltas {
            text.push_str(&delta.text.unwrap_or_default());
        }
        ended |= part.end.is_some();
        let failure = answer.take_failure();
        if failure.is_some() || answer.has_ended() {
            assert_eq!(ended, answer.has_ended());
            return (text, ended, failure.map(|failure| failure.code));
        }
    }
    panic!("an answer ends, well or badly");
}

#[test]
fn a_warning_is_in_the_first_row_and_in_the_last() {
    let check = AnswerCheck::default().warned(Some("moved"));
    let mut answer = UpstreamAnswer::new(provider("gemini"), 0).checked_by(check);
    let bytes = Bytes::from_static(GEMINI.as_bytes());
    let rows = answer.read(Some(bytes), str::to_owned).deltas;
    let [first, second] = rows.as_slice() else {
        panic!("{rows:?}")
    };
    let details = first.details.as_deref().unwrap();
    assert_eq!(details.fields, Some(json!({ "volley-warning": "moved" })));
    assert_eq!(second.details, None);
    let end = answer.read(None, str::to_owned).end.unwrap();
    assert_eq!(end.details.fields, details.fields);
}

#[test]
fn a_call_that_was_cut_off_has_no_arguments() {
    let call = r#"data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":""}}]}}]}"#;
    let arguments = |reason: &str| {
        let end = format!(
            r#"data: {{"choices":[{{"index":0,"delta":{{}},"finish_reason":"{reason}"}}]}}"#
        );
        let whole = format!("{call}\n\n{end}\n\ndata: [DONE]\n\n");
        let mut answer = UpstreamAnswer::new(provider("openai"), 0);
        let part = answer.read(Some(Bytes::from(whole)), str::to_owned);
        assert!(part.end.is_some());
        let calls = part.deltas.into_iter().filter_map(|delta| delta.tool_calls);
        calls.skip(1).collect::<String>()
    };
    assert_eq!(arguments("length"), "");
    assert!(arguments("tool_calls").contains("{}"));
}

/// The length of the prefix of a stream that includes the finish reason. The rest is optional.
fn enough(stream: &str) -> usize {
    let reason = ["\"length\"", "\"max_tokens\"", "\"MAX_TOKENS\""];
    let at = reason.iter().find_map(|reason| stream.find(reason));
    let at = at.expect("every stream has a reason");
    // Includes the line.
    at + stream[at..].find(['\r', '\n']).unwrap()
}

#[test]
fn cut_in_front_of_its_reason_a_stream_is_incomplete_and_never_a_success() {
    for (provider, stream) in STREAMS {
        let enough = enough(stream);
        for length in 0..stream.len() {
            let (text, ended, failure) = play(provider, &[&stream.as_bytes()[..length]]);
            assert!("Gr\u{fc}\u{df}e \u{1f98a}".starts_with(&text));
            let expected = (length < enough).then_some(ErrorCode::UpstreamIncomplete);
            assert_eq!(
                (ended, failure),
                (enough <= length, expected),
                "at {length}"
            );
        }
    }
}

#[test]
fn what_comes_in_one_piece_is_one_part() {
    let mut answer = UpstreamAnswer::new(provider("openai"), 0);
    let part = answer.read(Some(Bytes::from_static(OPENAI.as_bytes())), str::to_owned);
    assert_eq!(part.deltas.len(), 2);
    let end = part.end.unwrap();
    assert!(!end.details.unterminated);
    assert_eq!(end.finish_reason, FinishReason::Length);
    assert_eq!(end.usage.unwrap().completion_tokens, 3);
    assert!(answer.has_ended() && answer.take_failure().is_none());
}

#[test]
fn a_bare_error_among_events_is_the_servers() {
    let error = "{\n  \"error\": {\n    \"message\": \"busy\"\n  }\n}\n";
    let mut answer = UpstreamAnswer::new(provider("gemini"), 0);
    let begun = format!("{}{error}", &GEMINI[..GEMINI.find("\r\n\r\n").unwrap() + 4]);
    let part = answer.read(Some(Bytes::from(begun)), str::to_owned);
    assert_eq!(part.deltas.len(), 1);
    assert!(answer.take_failure().unwrap().message.contains("busy"));
}

#[test]
fn a_reason_without_a_terminator_is_an_end_that_is_told() {
    let cut = &OPENAI[..OPENAI.find("data: {\"choices\":[],").unwrap()];
    for broken in [false, true] {
        let mut answer = UpstreamAnswer::new(provider("openai"), 0);
        let read = answer.read(Some(Bytes::from_static(cut.as_bytes())), str::to_owned);
        assert!(read.end.is_none() && answer.has_reason());
        let part = match broken {
            true => answer.break_off(upstream::incomplete()),
            false => answer.read(None, str::to_owned),
        };
        let end = part.end.unwrap();
        assert!(end.details.unterminated && answer.take_failure().is_none());
        assert_eq!((end.finish_reason, end.usage), (FinishReason::Length, None));
    }
}

#[test]
fn a_stop_behind_calls_is_theirs_and_calls_without_arguments_have_an_object() {
    let stream = concat!(
        "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]}}]}\n\n",
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
    );
    let mut answer = UpstreamAnswer::new(provider("openai"), 0);
    let part = answer.read(Some(Bytes::from_static(stream.as_bytes())), str::to_owned);
    assert_eq!(part.end.unwrap().finish_reason, FinishReason::ToolCalls);
    let rest = part.deltas.last().unwrap().tool_calls.as_deref().unwrap();
    assert!(rest.contains(r#""arguments":"{}""#), "{rest}");
}

#[test]
fn a_failure_among_several_deltas_of_an_event_ends_the_answer() {
    let source = provider("openai");
    let mut several = Provider::new("several", source.parameters, source.body);
    several.limits_calls = false;
    several.read = |_, _| {
        let call = |index: u64| Delta {
            tool_calls: Some(json!([{ "index": index, "function": { "name": "f" } }]).to_string()),
            ..Delta::default()
        };
        let text = Delta {
            text: Some("more".to_owned()),
            ..Delta::default()
        };
        Ok(Step::All(vec![call(0), call(1), text]))
    };
    let fields = json!({ "parallel_tool_calls": false });
    let check = AnswerCheck::of(&several, &Value::Null, fields.as_object().unwrap());
    let several: &'static Provider = Box::leak(Box::new(several));
    let mut answer = UpstreamAnswer::new(several, 0).checked_by(check);
    let part = answer.read(Some(Bytes::from_static(b"data: {}\n\n")), str::to_owned);
    assert!(part.deltas.iter().all(|delta| delta.text.is_none()));
    let failure = answer.take_failure().unwrap();
    assert_eq!(failure.code, ErrorCode::UpstreamFailed);
}

#[test]
fn an_answer_in_another_format_is_told_from_a_stream() {
    let body = br#"{"status":"ok"}"#;
    let wire = Wire::from(provider("openai"));
    let refused = whole(&wire, AnswerCheck::default(), 0, body, str::to_owned).unwrap_err();
    let told = "with other JSON instead of a completion";
    assert!(refused.message.contains(told), "{refused}");
}

#[test]
fn a_connection_that_breaks_after_the_end_has_not_failed() {
    let mut answer = UpstreamAnswer::new(provider("openai"), 0);
    let unended = OPENAI.trim_end().as_bytes();
    answer.read(Some(Bytes::from_static(unended)), str::to_owned);
    assert!(!answer.has_ended());
    assert!(answer.break_off(upstream::incomplete()).end.is_some());
    assert!(answer.has_ended() && answer.take_failure().is_none());
}

proptest! {
    #[test]
    fn mutated_streams_end_in_one_way_and_alike_wherever_they_are_cut(
        which in 0..STREAMS.len(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        removed in any::<prop::sample::Index>(),
        place in any::<prop::sample::Index>(),
    ) {
        let (provider, stream) = STREAMS[which];
        let mut bytes = stream.as_bytes().to_vec();
        for (index, byte) in changes {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        bytes.remove(removed.index(bytes.len()));
        let whole = play(provider, &[&bytes]);
        let (a, b) = bytes.split_at(place.index(bytes.len()));
        prop_assert_eq!(play(provider, &[a, b]), whole);
    }
}

#[test]
fn a_bad_end_is_an_error_after_its_text() {
    let events = concat!(
        "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"a\"}]}}]}\n\n",
        "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"b\"}]},\"finishReason\":\"MALFORMED_RESPONSE\"}]}\n\n",
    );
    let mut answer = UpstreamAnswer::new(provider("gemini"), 0);
    let part = answer.read(Some(Bytes::from_static(events.as_bytes())), str::to_owned);
    let texts = part.deltas.iter().filter_map(|delta| delta.text.as_deref());
    assert_eq!(texts.collect::<String>(), "ab");
    assert!(part.end.is_none() && !answer.has_ended());
    let failure = answer.take_failure().unwrap();
    assert_eq!(failure.code, ErrorCode::UpstreamFailed);
    assert_eq!(failure.reason, Some(ErrorReason::AnswerUnusable));
    assert!(
        failure.message.contains("'MALFORMED_RESPONSE'"),
        "{failure:?}"
    );
    let body =
        br#"{"output":{"message":{"content":[{"text":"a"}]}},"stopReason":"malformed_tool_use"}"#;
    let wire = Wire::from(provider("bedrock"));
    let failure = whole(&wire, AnswerCheck::default(), 0, body, str::to_owned).unwrap_err();
    assert!(
        failure.message.contains("'malformed_tool_use'"),
        "{failure:?}"
    );
}
