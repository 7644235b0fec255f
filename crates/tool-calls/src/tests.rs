use proptest::prelude::*;

use super::*;

/// The text and the calls of an answer in these pieces.
fn answer(pieces: &[&str]) -> (String, Vec<(u64, String, String)>) {
    answer_of(ToolCalls::default(), pieces)
}

fn answer_of(mut calls: ToolCalls, pieces: &[&str]) -> (String, Vec<(u64, String, String)>) {
    let (mut text, mut found) = (String::new(), Vec::<(u64, String, String)>::new());
    let pushed: Vec<_> = pieces.iter().map(|piece| calls.push(piece)).collect();
    for part in pushed.into_iter().chain([calls.finish()]) {
        text.push_str(&part.text);
        let deltas = part.calls.unwrap_or_else(|| "[]".to_owned());
        let deltas: Vec<Value> = serde_json::from_str(&deltas).unwrap();
        for delta in &deltas {
            let text = |path| delta.pointer(path).and_then(Value::as_str);
            let index = delta["index"].as_u64().unwrap();
            let arguments = text("/function/arguments").unwrap();
            if index as usize == found.len() {
                assert!(text("/id").unwrap().starts_with("call_"));
                let name = text("/function/name").unwrap().to_owned();
                found.push((index, name, String::new()));
            }
            found[index as usize].2.push_str(arguments);
        }
    }
    for (_, _, arguments) in &mut found {
        // Ignores formatting.
        let same = serde_json::from_str::<Value>(arguments).map(|value| value.to_string());
        *arguments = same.unwrap_or_else(|_| arguments.clone());
    }
    assert_eq!(calls.any(), !found.is_empty());
    (text, found)
}

const MARKED: &str = "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n\
    </tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>";

#[test]
fn calls_are_found_between_marks_and_in_whole_answers() {
    let f = (0, "f".to_owned(), "{\"a\":1}".to_owned());
    let g = (1, "g".to_owned(), "{}".to_owned());
    let (text, calls) = answer(&[MARKED]);
    assert_eq!(text, "Let me see.");
    assert_eq!(calls, [f.clone(), g]);
    let (text, calls) = answer(&["{\"name\":\"f\",", "\"parameters\":{\"a\":1}}"]);
    assert_eq!((text.as_str(), calls), ("", vec![f.clone()]));
    let (_, calls) = answer(&["[{\"name\":\"f\",\"arguments\":{\"a\":1}}]"]);
    assert_eq!(calls, std::slice::from_ref(&f));
    // An answer that ends before its closing mark.
    let (_, calls) = answer(&["<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}"]);
    assert_eq!(calls, [f]);
}

#[test]
fn what_is_no_call_is_text() {
    for same in [
        "{\"a\":1}",
        "[1,2]",
        "<tool",
        "a < b",
        "<tool_call>no</tool_call>",
        "[",
        "",
    ] {
        assert_eq!(answer(&[same]), (same.to_owned(), vec![]), "{same}");
    }
}

/// The same call in the format of each template family.
const FAMILIES: [(&str, &str); 16] = [
    (
        "Hermes, Qwen 2.5 and 3",
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": 3}}\n</tool_call>",
    ),
    (
        "Llama 3.1 and 3.3",
        "{\"type\": \"function\", \"name\": \"weather\", \"parameters\": {\"city\": \"Bern\", \"days\": 3}}",
    ),
    ("Llama 3.2 and 4", "[weather(city='Bern', days=3)]"),
    (
        "Llama 3.1, custom tools; Functionary",
        "<function=weather>{\"city\": \"Bern\", \"days\": 3}</function>",
    ),
    (
        "Mistral, xLAM",
        "[{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": 3}, \"id\": \"a1b2c3d4e\"}]",
    ),
    (
        "Qwen3-Coder",
        "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
    ),
    (
        "Qwen3-Coder, without its mark",
        "<function=weather>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>",
    ),
    (
        "GLM-4.5",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    ),
    (
        "Command R",
        "Action: ```json\n[\n{\n\"tool_name\": \"weather\",\n\"parameters\": {\"city\": \"Bern\", \"days\": 3}\n}\n]```",
    ),
    (
        "Command R7B and A",
        "[{\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": {\"city\": \"Bern\", \"days\": 3}}]",
    ),
    (
        "Granite, Phi-4-mini",
        "[{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": 3}}]",
    ),
    (
        "DeepSeek V3 and R1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Bern\", \"days\": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "DeepSeek V3.1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Bern\", \"days\": 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "Kimi K2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"city\": \"Bern\", \"days\": 3}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    (
        "Mistral from its version 11 on",
        "[TOOL_CALLS]weather[ARGS]{\"city\": \"Bern\", \"days\": 3}",
    ),
    (
        "Mistral with its mark",
        "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": 3}}]",
    ),
];

fn weather() -> Value {
    json!([{ "type": "function", "function": { "name": "weather", "parameters": {
        "type": "object",
        "properties": { "city": { "type": "string" }, "days": { "type": "integer" } },
    } } }])
}

#[test]
fn every_family_of_templates_has_its_calls_found() {
    let expected = json!({ "city": "Bern", "days": 3 });
    for (family, written) in FAMILIES {
        for cut in 0..=written.len() {
            if !written.is_char_boundary(cut) {
                continue;
            }
            let (first, second) = written.split_at(cut);
            let (text, calls) = answer_of(ToolCalls::of(&weather()), &[first, second]);
            assert_eq!(text.trim(), "", "{family}, cut at {cut}");
            let [(0, name, arguments)] = &calls[..] else {
                panic!("{family}, cut at {cut}: {calls:?}");
            };
            let arguments: Value = serde_json::from_str(arguments).unwrap();
            assert_eq!(
                (name.as_str(), &arguments),
                ("weather", &expected),
                "{family}"
            );
        }
    }
}

#[test]
fn marks_of_special_tokens_come_by_themselves_and_are_never_text() {
    let mut tools = ToolCalls::of(&weather());
    let mut text = tools.push("I look.  [TOOL").text;
    assert_eq!(tools.mark("[ARGS]"), ParsedCalls::default());
    text.push_str(&tools.mark("[TOOL_CALLS]").text);
    for piece in ["wea", "ther"] {
        assert_eq!(tools.push(piece), ParsedCalls::default());
    }
    tools.mark("[ARGS]");
    let calls = tools.push("{\"city\": \"Bern\"}").calls.unwrap();
    let calls: Value = serde_json::from_str(&calls).unwrap();
    assert_eq!(tools.finish(), ParsedCalls::default());
    assert_eq!(text, "I look.  [TOOL");
    assert_eq!(calls[0]["function"]["name"], "weather");
    // A section without calls is text, without the marks.
    let mut tools = ToolCalls::of(&weather());
    assert_eq!(tools.mark("[TOOL_CALLS]"), ParsedCalls::default());
    tools.push("none of them");
    assert_eq!(tools.finish().text, "none of them");
    let (text, calls) = answer(&["Well. <｜tool▁calls▁begin｜>no<｜tool▁calls▁end｜> So."]);
    assert_eq!((text.as_str(), calls), ("Well.noSo.", vec![]));
}

#[test]
fn what_a_schema_calls_text_stays_text() {
    let tools = json!([{ "type": "function", "function": { "name": "look", "parameters": {
        "type": "object", "properties": { "code": { "type": "string" } } } } }]);
    let written = "<function=look><parameter=code>\n0012\n</parameter></function>";
    let (_, calls) = answer_of(ToolCalls::of(&tools), &[written]);
    assert_eq!(calls[0].2, "{\"code\":\"0012\"}");
}

#[test]
fn lists_that_call_nothing_there_is_are_text() {
    for same in [
        "[other(a=1)]",
        "[1, 2]",
        "<function=weather>no",
        "Action: go on",
    ] {
        let (text, calls) = answer_of(ToolCalls::of(&weather()), &[same]);
        assert_eq!((text.as_str(), calls), (same, vec![]));
    }
}

proptest! {
    #[test]
    fn how_an_answer_is_cut_makes_no_difference(cuts in proptest::collection::vec(0..MARKED.len(), 0..8)) {
        let mut cuts = cuts;
        cuts.extend([0, MARKED.len()]);
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts.windows(2).map(|cut| &MARKED[cut[0]..cut[1]]).collect();
        let (text, calls) = answer(&pieces);
        prop_assert_eq!(text.trim_end(), "Let me see.");
        prop_assert_eq!(calls.len(), 2);
    }
}

#[test]
fn arguments_come_as_they_are_written() {
    for (family, written) in FAMILIES {
        // Command R's calls are in a block, which is parsed when it is complete.
        let streams = written.contains("{\"city\"") && !written.starts_with("Action");
        let mut tools = ToolCalls::of(&weather());
        let mut deltas = 0;
        for c in written.chars() {
            deltas += usize::from(tools.push(&c.to_string()).calls.is_some());
        }
        deltas += usize::from(tools.finish().calls.is_some());
        assert_eq!(1 < deltas, streams, "{family}: {deltas}");
    }
}

#[test]
fn several_calls_are_told_apart_and_the_first_is_known_to_be_whole() {
    for written in [
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"}</tool_call>\"}}</tool_call>\n\
         <tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>",
        "[{\"name\": \"f\", \"arguments\": {\"a\": \"}</tool_call>\"}}, {\"name\": \"g\", \"arguments\": {}}]",
        "[TOOL_CALLS]f[ARGS]{\"a\": \"}</tool_call>\"}[TOOL_CALLS]g[ARGS]{}",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": \"}</tool_call>\"}<｜tool▁call▁end｜>\
         <｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ] {
        let pieces: Vec<String> = written.chars().map(String::from).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let (text, calls) = answer(&pieces);
        let expected = [
            (0, "f".to_owned(), "{\"a\":\"}</tool_call>\"}".to_owned()),
            (1, "g".to_owned(), "{}".to_owned()),
        ];
        assert_eq!((text.trim(), calls), ("", expected.to_vec()), "{written}");
        let mut tools = ToolCalls::default();
        let whole = pieces.iter().position(|piece| {
            tools.push(piece);
            tools.any_whole()
        });
        let whole: String = pieces[..=whole.unwrap()].concat();
        assert!(whole.ends_with("\"}"), "{whole}");
    }
}

#[test]
fn a_call_without_arguments_has_an_empty_object() {
    let tools = json!([{ "type": "function", "function": { "name": "now" } }]);
    for written in [
        "<tool_call>{\"name\": \"now\"}</tool_call>",
        "<tool_call>{\"name\": \"now\", \"arguments\": null}</tool_call>",
        "<tool_call>{\"name\": \"now\", \"arguments\": \"\"}</tool_call>",
        "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
        "<function=now></function>",
    ] {
        let (_, calls) = answer_of(ToolCalls::of(&tools), &[written]);
        assert_eq!(calls, [(0, "now".to_owned(), "{}".to_owned())], "{written}");
    }
    // Without a function of that name, the text is an answer.
    let (text, calls) = answer_of(ToolCalls::of(&tools), &["{\"name\": \"Ann\"}"]);
    assert_eq!((text.as_str(), calls), ("{\"name\": \"Ann\"}", vec![]));
}
