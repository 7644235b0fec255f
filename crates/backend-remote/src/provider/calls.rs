//! Tool calls, in the one form that all are brought to: OpenAI's deltas.

use serde_json::{Value, json};

use super::{Delta, Step};

/// The tool calls of one answer, for formats that do not number or name them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Calls {
    /// How many have begun.
    begun: u32,
    /// Whether what comes now belongs to the last of them.
    open: bool,
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
        self.open = true;
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

    /// More arguments of the call that began last; `None` where they are not a call's of the
    /// caller, as those of tools that run at the provider.
    pub(crate) fn more(&self, arguments: &str) -> Option<Value> {
        let index = self.begun.checked_sub(1).filter(|_| self.open)?;
        Some(json!({ "index": index, "function": { "arguments": arguments } }))
    }

    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        0 < self.begun
    }

    /// Something else than a call begins.
    pub(crate) fn close(&mut self) {
        self.open = false;
    }
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
