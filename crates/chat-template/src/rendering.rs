//! How a request has its prompts written for the model.

use std::sync::Arc;

use serde_json::{Map, Value};

/// Names that the template has of its own, whatever the request says.
pub const OWN: [&str; 4] = ["messages", "tools", "bos_token", "eos_token"];

/// How a request has its prompts written for the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rendering {
    /// Whether the tokenizer adds its special tokens; by default it does where no template is.
    pub special_tokens: Option<bool>,
    /// Whether the template's invitation to answer follows; by default it does.
    pub invites: bool,
    /// The answer goes on where the last message ends.
    pub continues: bool,
    /// Variables of the template, beside its own.
    pub variables: Arc<Map<String, Value>>,
    /// Only so many tokens of a prompt are read, the last ones.
    pub truncated: Option<usize>,
}
