//! State of an answer that arrives in content blocks, while it is read.

use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Maximum input of one server-specific block, in bytes. Longer input is dropped.
const MAX_INPUT: usize = 4 << 20;

/// The arguments of a call as text: some servers send an object instead of its text.
pub fn arguments_text(arguments: &Value) -> String {
    match arguments {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// As [`arguments_text`]; numbers in an object keep their text.
pub fn raw_arguments(arguments: Option<&RawValue>) -> String {
    let Some(arguments) = arguments.map(RawValue::get) else {
        return String::new();
    };
    match arguments.as_bytes().first() {
        Some(b'"') => serde_json::from_str(arguments).unwrap_or_default(),
        Some(b'n') => String::new(),
        _ => arguments.to_owned(),
    }
}

/// State of an answer in content blocks.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    /// The open block of a type that only its server defines: index, block and input so far.
    open: Option<(u64, Value, String)>,
    /// The usage so far. Later values replace earlier ones.
    pub usage: Map<String, Value>,
    /// Whether the previous block was text.
    pub after_text: bool,
    /// Inputs from the start events of tool calls, by block index.
    inputs: Vec<(u64, String)>,
}

impl Blocks {
    /// Starts block `number`, of a type that only its server defines.
    pub fn begin(&mut self, number: u64, block: Value) {
        self.open = Some((number, block, String::new()));
    }

    /// Appends `input` to the open block `number`.
    pub fn more(&mut self, number: u64, input: &str) {
        if let Some((open, _, given)) = &mut self.open
            && *open == number
            && given.len() + input.len() <= MAX_INPUT
        {
            given.push_str(input);
        }
    }

    /// Whether block `number` is open.
    pub fn is_open(&self, number: u64) -> bool {
        let open = self.open.as_ref();
        open.is_some_and(|(open, ..)| *open == number)
    }

    /// Adds the fields of a delta that only its server defines to the open block `number`: text is
    /// appended, and other values replace earlier ones.
    pub fn extend(&mut self, number: u64, delta: &Map<String, Value>) {
        let Some((_, block, _)) = self.open.as_mut().filter(|(open, ..)| *open == number) else {
            return;
        };
        let Some(block) = block.as_object_mut() else {
            return;
        };
        for (name, value) in delta.iter().filter(|(name, _)| *name != "type") {
            match (block.get_mut(name), value) {
                (Some(Value::String(text)), Value::String(more)) => {
                    if text.len() + more.len() <= MAX_INPUT {
                        text.push_str(more);
                    }
                }
                _ => _ = block.insert(name.clone(), value.clone()),
            }
        }
    }

    /// Ends block `number` and returns it with its input. `None` if another block or no block is
    /// open.
    pub fn end(&mut self, number: u64) -> Option<Value> {
        let (open, ..) = self.open.as_ref()?;
        if *open != number {
            return None;
        }
        let (_, mut block, input) = self.open.take()?;
        if let Ok(input) = serde_json::from_str::<Value>(&input) {
            block["input"] = input;
        }
        Some(block)
    }

    /// Stores the input in the start event of call `number`. It is the call's input only if no
    /// input deltas follow.
    pub fn keep_input(&mut self, number: u64, input: &Value) {
        // Some servers send the text of an object instead of the object.
        let is_empty = match input {
            Value::Object(input) => input.is_empty(),
            Value::String(input) => input.is_empty(),
            _ => true,
        };
        if !is_empty {
            self.inputs.push((number, arguments_text(input)));
        }
    }

    /// Removes and returns the stored input of call `number`.
    pub fn take_input(&mut self, number: u64) -> Option<String> {
        let at = self.inputs.iter().position(|(known, _)| *known == number)?;
        Some(self.inputs.remove(at).1)
    }

    /// Replaces the stored input of call `number` by its own text, in which numbers are exact.
    pub fn exact_input(&mut self, number: u64, text: &str) {
        let mut known = self.inputs.iter_mut();
        if let Some((_, input)) = known.find(|(known, _)| *known == number) {
            text.clone_into(input);
        }
    }

    /// Merges `told` into the usage; nulls are ignored.
    pub fn count(&mut self, told: &Value) {
        for (name, value) in told.as_object().into_iter().flatten() {
            if !value.is_null() {
                self.usage.insert(name.clone(), value.clone());
            }
        }
    }
}
