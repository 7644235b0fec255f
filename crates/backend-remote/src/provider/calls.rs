//! Tool calls, in the one form that all are brought to: OpenAI's deltas.

use serde_json::{Value, json};

use super::{Delta, Passages, Step};

/// The tool calls of one answer, for formats that do not number or name them, and where its text
/// stands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calls {
    pub(crate) passages: Passages,
    /// How many have begun.
    begun: u32,
    /// The server's numbers of those that it numbers.
    blocks: Vec<(u64, u32)>,
    /// Makes their ids differ from those of other answers.
    seed: u64,
}

impl Calls {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    /// The beginning of the next call in the one form that all are brought to: OpenAI's delta,
    /// counted from 0, with an id of ours where the server gives none.
    pub(crate) fn begin(&mut self, id: Option<&str>, name: &str, arguments: &str) -> Value {
        let index = self.begun;
        self.begun = index.saturating_add(1);
        let id = match id {
            Some(id) if !id.is_empty() => id.to_owned(),
            _ => format!("call_{:016x}_{index}", self.seed),
        };
        json!({
            "index": index,
            "id": id,
            "type": "function",
            "function": { "name": name, "arguments": arguments },
        })
    }

    /// As [`Self::begin`], where the server has numbers of its own for what it sends: pieces of
    /// several calls may come in turns.
    pub(crate) fn begin_in(
        &mut self,
        block: u64,
        id: Option<&str>,
        name: &str,
        arguments: &str,
    ) -> Value {
        self.blocks.push((block, self.begun));
        self.begin(id, name, arguments)
    }

    /// More arguments of the call that began last; `None` where there is none.
    pub(crate) fn more(&self, arguments: &str) -> Option<Value> {
        let index = self.begun.checked_sub(1)?;
        Some(more_of(index, arguments))
    }

    /// More arguments of the call with the server's number `block`; `None` where that is no call
    /// of the caller, as those of tools that run at the provider.
    pub(crate) fn more_in(&self, block: u64, arguments: &str) -> Option<Value> {
        let mut known = self.blocks.iter().rev();
        let (_, index) = known.find(|(known, _)| *known == block)?;
        Some(more_of(*index, arguments))
    }

    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        0 < self.begun
    }
}

fn more_of(index: u32, arguments: &str) -> Value {
    json!({ "index": index, "function": { "arguments": arguments } })
}

/// Tool-call deltas as a chunk has them; `None` for none.
pub(crate) fn deltas(calls: Vec<Value>) -> Option<String> {
    (!calls.is_empty()).then(|| Value::Array(calls).to_string())
}

/// Numbers the calls of OpenAI's form from a server whose own numbers cannot be relied on: there
/// may be none, an id that says "null", and arguments that are no text yet. A call begins where it
/// has a name.
///
/// # Errors
/// `Err` with what is wrong when they are no list.
pub(super) fn in_order(step: Step, calls: &mut Calls) -> Result<Step, String> {
    let mut delta = match step {
        Step::Delta(delta) => delta,
        other => return Ok(other),
    };
    let Some(given) = delta.tool_calls.take() else {
        return Ok(Step::Delta(delta));
    };
    let given = serde_json::from_str::<Vec<Value>>(&given);
    let given = given.map_err(|_| "tool calls that are no list".to_owned())?;
    let made = given.iter().filter_map(|call| {
        let function = &call["function"];
        let arguments = match &function["arguments"] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        match function["name"].as_str().filter(|name| !name.is_empty()) {
            Some(name) => {
                let id = call["id"].as_str().filter(|id| *id != "null");
                Some(calls.begin(id, name, &arguments))
            }
            None => calls.more(&arguments),
        }
    });
    delta.tool_calls = deltas(made.collect());
    Ok(Step::Delta(delta))
}

/// As [`in_order`], where the server has not numbered them itself.
///
/// # Errors
/// As [`in_order`].
pub(super) fn numbered(step: Step, calls: &mut Calls) -> Result<Step, String> {
    match &step {
        Step::Delta(Delta {
            tool_calls: Some(given),
            ..
        }) if !given.contains("\"index\"") => in_order(step, calls),
        _ => Ok(step),
    }
}
