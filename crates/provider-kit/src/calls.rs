//! Normalizes tool calls to OpenAI's deltas: the first delta of a call has its `id`, `type` and
//! name, later ones have more arguments. Calls are numbered from 0.

use serde_json::{Map, Value, json};

use crate::blocks::{Blocks, arguments_text};
use crate::citations::Passages;
use crate::parts::AnswerParts;
use crate::step::Step;

/// The tool calls of one answer, and the state of its citations and blocks. It supplies indexes and
/// ids for servers that send none.
#[derive(Clone, Debug, Default)]
pub struct ToolCallAccumulator {
    /// The positions and citations of the text.
    pub passages: Passages,
    /// State of an answer that arrives in content blocks.
    pub native: Blocks,
    /// The parts whose end repeats their deltas.
    pub parts: AnswerParts,
    /// The started calls.
    begun: Vec<StartedCall>,
    /// The server's number and our index of each call that the server numbers.
    blocks: Vec<(u64, usize)>,
    /// Calls whose name has not arrived.
    nameless: Vec<UnnamedCall>,
    /// Whether a call started without a name.
    has_nameless: bool,
    /// Part of generated ids, so that they differ between answers.
    seed: u64,
}

#[derive(Clone, Debug)]
struct StartedCall {
    id: String,
    /// Whether arguments arrived, or none are needed.
    filled: bool,
    kind: Kind,
}

/// Type of a call, which determines the fields of its name and its input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    /// A function with JSON input.
    #[default]
    Function,
    /// A tool with free text as input.
    Custom,
}

impl Kind {
    fn of(call: &Value) -> Self {
        match call.get("custom").is_some_and(Value::is_object) || call["type"] == "custom" {
            true => Self::Custom,
            false => Self::Function,
        }
    }

    /// The object of a call, and the field in it that contains the input.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Function => ("function", "arguments"),
            Self::Custom => ("custom", "input"),
        }
    }
}

#[derive(Clone, Debug)]
struct UnnamedCall {
    number: u64,
    id: Option<String>,
    arguments: String,
}

impl ToolCallAccumulator {
    /// Creates an empty accumulator. Generated ids contain `seed`.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    /// Returns the first delta of the next call. Generates an id if the server sends none.
    pub fn begin(&mut self, id: Option<&str>, name: &str, arguments: &str) -> Value {
        self.begin_kind(Kind::Function, id, name, arguments)
    }

    fn begin_kind(&mut self, kind: Kind, id: Option<&str>, name: &str, input: &str) -> Value {
        self.has_nameless |= name.is_empty();
        let index = self.begun.len();
        let id = match id {
            Some(id) if !id.is_empty() => id.to_owned(),
            _ => format!("call_{:016x}_{index}", self.seed),
        };
        self.begun.push(StartedCall {
            id: id.clone(),
            filled: kind == Kind::Custom || !input.is_empty(),
            kind,
        });
        let (object, field) = kind.names();
        let mut call = json!({ "index": index, "id": id, "type": object });
        call[object] = json!({ "name": name });
        call[object][field] = input.into();
        call
    }

    /// Like [`Self::begin`], for servers that number their calls: deltas of several calls may
    /// interleave.
    pub fn begin_in(&mut self, block: u64, id: Option<&str>, name: &str, arguments: &str) -> Value {
        self.blocks.push((block, self.begun.len()));
        self.begin(id, name, arguments)
    }

    /// Returns a delta with more arguments of the newest call; `None` without a call.
    pub fn more(&mut self, arguments: &str) -> Option<Value> {
        let index = self.begun.len().checked_sub(1)?;
        Some(self.more_of(index, arguments))
    }

    /// Returns a delta with more arguments of the call with the server's number `block`. `None` if
    /// that is not a call for the caller, as with tools that run at the provider.
    pub fn more_in(&mut self, block: u64, arguments: &str) -> Option<Value> {
        let index = self.place(block)?;
        Some(self.more_of(index, arguments))
    }

    /// Whether the call with the server's number `block` has no arguments yet.
    pub fn is_unfilled(&self, block: u64) -> bool {
        let place = self.place(block);
        place.is_some_and(|index| !self.begun[index].filled)
    }

    /// Whether the answer has calls.
    pub fn any(&self) -> bool {
        !self.begun.is_empty()
    }

    /// Whether a call has no name: its start had none, or none has arrived for it yet.
    pub fn lacks_name(&self) -> bool {
        self.has_nameless || !self.nameless.is_empty()
    }

    /// Returns the outstanding deltas at the end of an answer: an empty object for calls without
    /// arguments. If the answer was cut off, the last call has no arguments because they had not
    /// begun, and gets none.
    pub fn rest(&mut self, is_cut: bool) -> Option<String> {
        let mut rest = Vec::new();
        let complete = self.begun.len().saturating_sub(usize::from(is_cut));
        for index in 0..complete {
            if !self.begun[index].filled {
                rest.push(self.more_of(index, "{}"));
            }
        }
        deltas(rest)
    }

    fn place(&self, block: u64) -> Option<usize> {
        let mut known = self.blocks.iter().rev();
        let (_, index) = known.find(|(known, _)| *known == block)?;
        Some(*index)
    }

    fn more_of(&mut self, index: usize, arguments: &str) -> Value {
        self.begun[index].filled |= !arguments.is_empty();
        let (object, field) = self.begun[index].kind.names();
        let mut call = json!({ "index": index });
        call[object] = json!({ field: arguments });
        call
    }

    /// Processes a delta in OpenAI's format by the server's number. A known number with a new id
    /// and a name starts another call, because some servers use one number for all calls.
    fn numbered(&mut self, number: u64, piece: &Piece<'_>) -> Option<Value> {
        let known = self.place(number);
        let again = known.is_some_and(|index| {
            let other = piece.id.is_some_and(|id| id != self.begun[index].id);
            other && piece.name.is_some()
        });
        match (piece.name, known) {
            (Some(name), None) => Some(self.named(number, name, piece)),
            (Some(name), Some(_)) if again => Some(self.named(number, name, piece)),
            (_, Some(index)) => {
                (!piece.arguments.is_empty()).then(|| self.more_of(index, &piece.arguments))
            }
            (None, None) => {
                self.wait(number, piece);
                None
            }
        }
    }

    fn named(&mut self, number: u64, name: &str, piece: &Piece<'_>) -> Value {
        let waited = self.nameless.iter().position(|it| it.number == number);
        let waited = waited.map(|at| self.nameless.remove(at));
        let (id, before) = match &waited {
            Some(waited) => (waited.id.as_deref(), waited.arguments.as_str()),
            None => (None, ""),
        };
        let arguments = format!("{before}{}", piece.arguments);
        self.blocks.push((number, self.begun.len()));
        self.begin_kind(piece.kind, piece.id.or(id), name, &arguments)
    }

    fn wait(&mut self, number: u64, piece: &Piece<'_>) {
        let mut waiting = self.nameless.iter_mut();
        match waiting.find(|it| it.number == number) {
            Some(waiting) => {
                waiting.arguments.push_str(&piece.arguments);
                waiting.id = waiting.id.take().or(piece.id.map(str::to_owned));
            }
            None => self.nameless.push(UnnamedCall {
                number,
                id: piece.id.map(str::to_owned),
                arguments: piece.arguments.clone(),
            }),
        }
    }
}

/// A tool-call delta in OpenAI's format.
struct Piece<'a> {
    kind: Kind,
    id: Option<&'a str>,
    name: Option<&'a str>,
    arguments: String,
}

impl<'a> Piece<'a> {
    fn of(call: &'a Value) -> Self {
        let kind = Kind::of(call);
        let (object, field) = kind.names();
        let function = &call[object];
        let text = |value: &'a Value| value.as_str().filter(|text| !text.is_empty());
        Self {
            kind,
            id: text(&call["id"]).filter(|id| *id != "null"),
            name: text(&function["name"]),
            arguments: arguments_text(&function[field]),
        }
    }
}

/// Serializes tool-call deltas for a chunk; `None` if there are none.
pub fn deltas(calls: Vec<Value>) -> Option<String> {
    (!calls.is_empty()).then(|| Value::Array(calls).to_string())
}

/// Renumbers calls in OpenAI's format from a server with unreliable numbers. Numbers may be absent,
/// ids may be "null", and arguments may be JSON values instead of text. Each name starts a new
/// call.
///
/// # Errors
/// A description of the fault if the calls are not a list.
pub fn in_order(step: Step, calls: &mut ToolCallAccumulator) -> Result<Step, String> {
    each(step, |call| {
        let piece = Piece::of(call);
        match piece.name {
            Some(name) => Some(calls.begin_kind(piece.kind, piece.id, name, &piece.arguments)),
            None => calls.more(&piece.arguments),
        }
    })
}

/// Like [`in_order`], but uses the server's numbers where present.
///
/// # Errors
/// Those of [`in_order`].
pub fn numbered(step: Step, calls: &mut ToolCallAccumulator) -> Result<Step, String> {
    each(step, |call| {
        let piece = Piece::of(call);
        match (call["index"].as_u64(), piece.name) {
            (Some(number), _) => calls.numbered(number, &piece),
            (None, Some(name)) => {
                Some(calls.begin_kind(piece.kind, piece.id, name, &piece.arguments))
            }
            (None, None) => calls.more(&piece.arguments),
        }
    })
}

/// Normalizes each call of a step. Additional fields of a call are kept.
fn each(step: Step, mut made: impl FnMut(&Value) -> Option<Value>) -> Result<Step, String> {
    let (mut delta, last) = match step {
        Step::Delta(delta) => (delta, false),
        Step::Last(delta) => (delta, true),
        other => return Ok(other),
    };
    if let Some(given) = delta.tool_calls.take() {
        let given = serde_json::from_str::<Vec<Value>>(&given);
        let given = given.map_err(|_| "'tool_calls' is not a list".to_owned())?;
        let made = given.iter().filter_map(|call| {
            let mut one = made(call)?;
            beside(&mut one, call.as_object());
            Some(one)
        });
        delta.tool_calls = deltas(made.collect());
    }
    Ok(match last {
        true => Step::Last(delta),
        false => Step::Delta(delta),
    })
}

fn beside(call: &mut Value, given: Option<&Map<String, Value>>) {
    let known = ["index", "id", "type", "function", "custom"];
    for (name, value) in given.into_iter().flatten() {
        if !known.contains(&name.as_str()) && !value.is_null() {
            call[name.as_str()] = value.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Delta;

    fn said(step: &str, calls: &mut ToolCallAccumulator) -> Value {
        let delta = Delta {
            tool_calls: Some(step.to_owned()),
            ..Delta::default()
        };
        let Ok(Step::Delta(delta)) = numbered(Step::Delta(delta), calls) else {
            panic!("{step}")
        };
        let told = delta.tool_calls.unwrap_or_else(|| "[]".to_owned());
        serde_json::from_str(&told).unwrap()
    }

    #[test]
    fn a_call_says_its_id_and_name_once_and_its_arguments_as_text() {
        let calls = &mut ToolCallAccumulator::new(7);
        let first = said(
            r#"[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":{"x":1}},"extra_content":{"k":1}}]"#,
            calls,
        );
        assert_eq!(first[0]["function"]["arguments"], "{\"x\":1}");
        assert_eq!(first[0]["extra_content"]["k"], 1);
        let again = r#"[{"index":0,"id":"a","function":{"name":"f","arguments":" "}}]"#;
        let again = said(again, calls);
        assert_eq!(
            again,
            json!([{ "index": 0, "function": { "arguments": " " } }])
        );
        assert_eq!(calls.rest(false), None);
    }

    #[test]
    fn calls_of_custom_tools_have_their_input_as_it_is() {
        let calls = &mut ToolCallAccumulator::new(7);
        let first = r#"[{"index":0,"id":"a","type":"custom","custom":{"name":"f","input":""}}]"#;
        assert_eq!(
            said(first, calls)[0],
            json!({ "index": 0, "id": "a", "type": "custom",
                    "custom": { "name": "f", "input": "" } })
        );
        let more = said(r#"[{"index":0,"custom":{"input":"a = 1"}}]"#, calls);
        assert_eq!(
            more[0],
            json!({ "index": 0, "custom": { "input": "a = 1" } })
        );
        let bare = said(
            r#"[{"index":0,"type":"custom","custom":{"input":"!"}}]"#,
            calls,
        );
        assert_eq!(bare[0]["custom"]["input"], "!");
        assert_eq!(calls.rest(false), None, "no input is an input, too");
    }

    #[test]
    fn numbers_with_gaps_and_one_number_for_all_become_counts() {
        let calls = &mut ToolCallAccumulator::new(7);
        let gap = r#"[{"index":1,"id":"a","function":{"name":"f","arguments":""}},{"index":5,"function":{"name":"g"}}]"#;
        let gap = said(gap, calls);
        assert_eq!((&gap[0]["index"], &gap[1]["index"]), (&json!(0), &json!(1)));
        assert_eq!(gap[1]["id"], "call_0000000000000007_1");
        let other = r#"[{"index":5,"id":"c","function":{"name":"g","arguments":"{}"}}]"#;
        assert_eq!(said(other, calls)[0]["index"], 2);
        let rest: Value = serde_json::from_str(&calls.rest(false).unwrap()).unwrap();
        let empty = |index: u32| json!({ "index": index, "function": { "arguments": "{}" } });
        assert_eq!(rest, json!([empty(0), empty(1)]));
    }

    #[test]
    fn a_call_that_was_cut_off_has_no_arguments() {
        let calls = &mut ToolCallAccumulator::new(7);
        let two = r#"[{"index":0,"id":"a","function":{"name":"f","arguments":""}},{"index":1,"id":"b","function":{"name":"g","arguments":""}}]"#;
        said(two, calls);
        let rest: Value = serde_json::from_str(&calls.rest(true).unwrap()).unwrap();
        let first = json!({ "index": 0, "function": { "arguments": "{}" } });
        assert_eq!(rest, json!([first]), "the second was not written");
        assert_eq!(calls.rest(true), None);
    }

    #[test]
    fn what_comes_in_front_of_a_name_waits_for_it() {
        let calls = &mut ToolCallAccumulator::new(7);
        let nothing = r#"[{"index":0,"id":"a","function":{"arguments":"{"}}]"#;
        assert_eq!(said(nothing, calls), json!([]));
        let named = r#"[{"index":0,"function":{"name":"f","arguments":"}"}}]"#;
        let named = said(named, calls);
        assert_eq!(named[0]["id"], "a");
        assert_eq!(named[0]["function"]["arguments"], "{}");
        assert!(!calls.lacks_name());
        said(r#"[{"index":3,"function":{"arguments":"{}"}}]"#, calls);
        assert!(calls.lacks_name());
        assert_eq!(calls.rest(false), None);
    }
}
