//! Tool calls in an answer's text, in the forms that common chat templates teach: between marks
//! (`<tool_call>`, `<function=…>`, special tokens), or as an answer that is nothing but calls.
//! [`forms`] lists them.

mod forms;
mod python;
mod required;
mod special;

use serde_json::{Value, json};

pub(crate) use self::required::{CallStyle, Function, grammar};
pub(crate) use self::special::{MarkIds, is_mark};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// What calls stand between, inside of text. Where the second is empty, all that follows is calls.
const MARKS: [(&str, &str); 5] = [
    (OPEN, CLOSE),
    (forms::FUNCTION, "</function>"),
    special::MARKS[0],
    special::MARKS[1],
    special::MARKS[2],
];

/// What a piece of text brings.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Found {
    /// Text that is no part of a call.
    pub(crate) text: String,
    /// Calls, as a JSON array of deltas in OpenAI's form.
    pub(crate) calls: Option<String>,
}

/// Finds the calls in one answer.
#[derive(Debug, Default)]
pub(crate) struct ToolCalls {
    place: Place,
    /// Not given out yet.
    held: String,
    /// How many calls there were.
    found: usize,
    /// What may be called.
    functions: Vec<Function>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Nothing has come that tells what the answer is.
    #[default]
    Start,
    /// In text.
    Text,
    /// Between the marks of that number.
    Call(usize),
    /// In an answer that may be nothing but calls.
    Whole,
}

impl ToolCalls {
    /// Calls of `tools`, a list in OpenAI's form.
    pub(crate) fn of(tools: &Value) -> Self {
        let tools = tools.as_array().into_iter().flatten();
        Self {
            functions: tools.filter_map(Function::of).collect(),
            ..Self::default()
        }
    }

    /// Whether the answer calls anything.
    pub(crate) fn any(&self) -> bool {
        0 < self.found
    }

    /// Takes a special token that [is a mark](is_mark). Where it makes no sense it is left out.
    pub(crate) fn mark(&mut self, mark: &str) -> Found {
        match self.place {
            Place::Call(_) => self.push(mark),
            Place::Start | Place::Text if special::opens(mark) => {
                // What is held may begin a mark that does not come now.
                self.place = Place::Text;
                let mut found = Found {
                    text: std::mem::take(&mut self.held),
                    calls: None,
                };
                found.text.truncate(found.text.trim_end().len());
                found.text.push_str(&self.push(mark).text);
                found
            }
            _ => Found::default(),
        }
    }

    /// Takes the next piece of an answer.
    pub(crate) fn push(&mut self, text: &str) -> Found {
        self.held.push_str(text);
        let mut found = Found::default();
        let mut calls = Vec::new();
        loop {
            match self.place {
                Place::Start => match forms::may_be_whole(&self.held) {
                    None => break,
                    Some(true) => self.place = Place::Whole,
                    Some(false) => self.place = Place::Text,
                },
                Place::Whole => break,
                Place::Text => {
                    let marks = MARKS.iter().enumerate();
                    let found_at = marks.filter_map(|(number, (open, _))| {
                        self.held.find(open).map(|at| (at, number))
                    });
                    if let Some((at, number)) = found_at.min() {
                        found.text.push_str(self.held[..at].trim_end());
                        self.held.drain(..at + MARKS[number].0.len());
                        self.place = Place::Call(number);
                    } else {
                        let kept = MARKS.map(|(open, _)| partial(&self.held, open));
                        let kept = kept.into_iter().max().unwrap_or(0);
                        let given = self.held.len() - kept;
                        found.text.extend(self.held.drain(..given));
                        break;
                    }
                }
                Place::Call(number) => {
                    let close = MARKS[number].1;
                    let Some(at) = self.held.find(close).filter(|_| !close.is_empty()) else {
                        break;
                    };
                    let inside: String = self.held.drain(..at).collect();
                    self.held.drain(..close.len());
                    match self.read_marked(number, &inside) {
                        Some(deltas) => calls.extend(deltas),
                        None => found.text.push_str(&no_call(number, &inside, close)),
                    }
                    self.place = Place::Text;
                    let blank = self.held.len() - self.held.trim_start().len();
                    self.held.drain(..blank);
                }
            }
        }
        found.calls = (!calls.is_empty()).then(|| Value::Array(calls).to_string());
        found
    }

    /// What is left when the answer ends.
    pub(crate) fn finish(&mut self) -> Found {
        let rest = std::mem::take(&mut self.held);
        let read = match self.place {
            Place::Whole => self.read(&rest),
            Place::Call(number) => self.read_marked(number, &rest),
            Place::Start | Place::Text => None,
        };
        let text = match (&read, self.place) {
            (Some(_), _) => String::new(),
            (None, Place::Call(number)) => no_call(number, &rest, ""),
            (None, _) => rest,
        };
        let calls = read.map(|calls| Value::Array(calls).to_string());
        Found { text, calls }
    }

    /// The calls that stand between marks.
    fn read_marked(&mut self, number: usize, inside: &str) -> Option<Vec<Value>> {
        match MARKS[number] {
            (OPEN, _) => self.read(inside),
            // The name is part of the mark.
            (open, _) => self.read(&format!("{open}{inside}")),
        }
    }

    /// The calls that `text` is: one, or several; `None` when it is none.
    fn read(&mut self, text: &str) -> Option<Vec<Value>> {
        let calls = forms::read(text, &self.functions)?;
        let deltas = calls.into_iter().map(|call| {
            let index = self.found;
            self.found += 1;
            let arguments = match call.arguments {
                Value::String(text) => text,
                value => value.to_string(),
            };
            json!({
                "index": index,
                "id": format!("call_{:016x}", fastrand::u64(..)),
                "type": "function",
                "function": { "name": call.name, "arguments": arguments },
            })
        });
        Some(deltas.collect())
    }
}

/// What stands between marks and is no call: with the marks, which are the answer's own then, unless
/// they are special tokens.
fn no_call(number: usize, inside: &str, close: &str) -> String {
    let open = MARKS[number].0;
    match special::opens(open) {
        true => special::without_marks(inside),
        false => [open, inside, close].concat(),
    }
}

/// How many bytes at the end of `text` may be the beginning of `mark`.
fn partial(text: &str, mark: &str) -> usize {
    (1..mark.len())
        .rev()
        .filter(|length| mark.is_char_boundary(*length))
        .find(|length| text.ends_with(&mark[..*length]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The text and the calls of an answer that comes in these pieces.
    fn answer(pieces: &[&str]) -> (String, Vec<(u64, String, String)>) {
        answer_of(ToolCalls::default(), pieces)
    }

    fn answer_of(mut calls: ToolCalls, pieces: &[&str]) -> (String, Vec<(u64, String, String)>) {
        let (mut text, mut found) = (String::new(), Vec::new());
        let pushed: Vec<_> = pieces.iter().map(|piece| calls.push(piece)).collect();
        for part in pushed.into_iter().chain([calls.finish()]) {
            text.push_str(&part.text);
            let deltas = part.calls.unwrap_or_else(|| "[]".to_owned());
            let deltas: Vec<Value> = serde_json::from_str(&deltas).unwrap();
            found.extend(deltas.iter().map(|delta| {
                let text = |path| delta.pointer(path).unwrap().as_str().unwrap().to_owned();
                assert!(text("/id").starts_with("call_"));
                let index = delta["index"].as_u64().unwrap();
                (index, text("/function/name"), text("/function/arguments"))
            }));
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
        // An answer that ends before its last mark.
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

    /// What each family of templates has its models write, for the same call.
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
        assert_eq!(tools.mark("[ARGS]"), Found::default());
        text.push_str(&tools.mark("[TOOL_CALLS]").text);
        for piece in ["wea", "ther"] {
            assert_eq!(tools.push(piece), Found::default());
        }
        tools.mark("[ARGS]");
        tools.push("{\"city\": \"Bern\"}");
        let calls: Value = serde_json::from_str(&tools.finish().calls.unwrap()).unwrap();
        assert_eq!(text, "I look.  [TOOL");
        assert_eq!(calls[0]["function"]["name"], "weather");
        // What is no call is text, without the marks.
        let mut tools = ToolCalls::of(&weather());
        assert_eq!(tools.mark("[TOOL_CALLS]"), Found::default());
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
}
