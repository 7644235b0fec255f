//! Parts of answers that only one format knows, while they are read.

use serde_json::{Map, Value};

/// The longest input of a part that is read piece by piece, in bytes.
const MAX_INPUT: usize = 4 << 20;

/// What is kept of an answer in blocks while it is read.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    /// One of a kind that only its server knows, with the pieces of its input.
    open: Option<(u64, Value, String)>,
    /// The usage as far as it was told: later numbers take the place of earlier ones.
    pub usage: Map<String, Value>,
    /// Whether the block before was text.
    pub after_text: bool,
    /// Inputs that came with the beginnings of calls.
    inputs: Vec<(u64, String)>,
}

impl Blocks {
    /// A block of a kind that only its server knows begins.
    pub fn begin(&mut self, number: u64, block: Value) {
        self.open = Some((number, block, String::new()));
    }

    /// More of its input.
    pub fn more(&mut self, number: u64, input: &str) {
        if let Some((open, _, given)) = &mut self.open
            && *open == number
            && given.len() + input.len() <= MAX_INPUT
        {
            given.push_str(input);
        }
    }

    /// It ends here.
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

    /// A call begins with this input, which counts where no pieces of one follow.
    pub fn keep_input(&mut self, number: u64, input: &Value) {
        if input.as_object().is_some_and(|input| !input.is_empty()) {
            self.inputs.push((number, input.to_string()));
        }
    }

    /// The input with which the call of that number began.
    pub fn take_input(&mut self, number: u64) -> Option<String> {
        let at = self.inputs.iter().position(|(known, _)| *known == number)?;
        Some(self.inputs.remove(at).1)
    }

    /// Takes in what is told of the usage; nulls say nothing.
    pub fn count(&mut self, told: &Value) {
        for (name, value) in told.as_object().into_iter().flatten() {
            if !value.is_null() {
                self.usage.insert(name.clone(), value.clone());
            }
        }
    }
}
