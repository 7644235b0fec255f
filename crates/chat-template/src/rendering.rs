//! Options of a request for rendering its prompts.

use std::sync::Arc;

use serde_json::{Map, Value};

/// Variables that a request cannot set.
pub const OWN: [&str; 4] = ["messages", "tools", "bos_token", "eos_token"];

/// Options of a request for rendering its prompts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rendering {
    /// Whether the tokenizer adds special tokens. By default it does so for prompts without a
    /// template.
    pub special_tokens: Option<bool>,
    /// Whether the prompt ends with the beginning of an answer (`add_generation_prompt`).
    pub invites: bool,
    /// Whether the answer continues the last message.
    pub continues: bool,
    /// Additional variables of the template.
    pub variables: Arc<Map<String, Value>>,
    /// Maximum number of tokens of a prompt. Only the last ones are kept.
    pub truncated: Option<usize>,
}
