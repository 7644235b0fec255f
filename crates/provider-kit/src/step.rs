//! What the events of an answer bring, in the one form that all are brought to.

use volley_types::{Citation, Details, ErrorCode, FinishReason, Usage};

/// What an event brings. Empty where it brings nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// A piece of the text.
    pub text: Option<String>,
    /// A piece of what was thought.
    pub thinking: Option<String>,
    /// A JSON array of tool-call deltas.
    pub tool_calls: Option<String>,
    /// Why the answer ends.
    pub finish_reason: Option<FinishReason>,
    /// Tokens of the prompt.
    pub prompt_tokens: Option<u32>,
    /// Tokens of the completion.
    pub completion_tokens: Option<u32>,
    /// Those of the prompt that a cache had.
    pub cached_tokens: Option<u32>,
    /// Those of the prompt that were written to a cache.
    pub cache_write_tokens: Option<u32>,
    /// Those of the completion that were reasoning.
    pub reasoning_tokens: Option<u32>,
    /// The probabilities of the text's tokens, as a JSON array in OpenAI's form.
    pub logprobs: Option<String>,
    /// What the text refers to; an empty list where a passage begins of which that is told later.
    pub citations: Option<Vec<Citation>>,
    /// What only some dialects have a place for.
    pub details: Option<Box<Details>>,
    /// What is told of that with the answer's end.
    pub end: Option<Box<Details>>,
}

impl Delta {
    /// Whether it counts any tokens.
    pub fn has_usage(&self) -> bool {
        self.prompt_tokens.is_some() || self.completion_tokens.is_some()
    }

    /// Details beside the rest.
    pub fn details(&mut self) -> &mut Details {
        self.details.get_or_insert_default()
    }

    /// Details for the answer's end.
    pub fn end(&mut self) -> &mut Details {
        self.end.get_or_insert_default()
    }

    /// Whether it has something for the caller by itself.
    pub fn has_content(&self) -> bool {
        let some = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        some(&self.text)
            || some(&self.thinking)
            || some(&self.tool_calls)
            || some(&self.logprobs)
            || self.citations.is_some()
            || self.details.is_some()
    }
}

/// What came of one event.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// It brings something, or nothing.
    Delta(Delta),
    /// It brings something, and is the answer's own end.
    Last(Delta),
    /// It brings these, one after the other.
    All(Vec<Delta>),
    /// It is the answer's own end.
    End,
    /// The server says that it failed; its message.
    Failed(String),
    /// The server says that it does not do it, and whose fault that is; its message.
    Refused(ErrorCode, String),
}

/// Adds what is known of the usage.
pub fn usage(total: &mut Usage, delta: &Delta) {
    total.prompt_tokens = delta.prompt_tokens.unwrap_or(total.prompt_tokens);
    total.completion_tokens = delta.completion_tokens.unwrap_or(total.completion_tokens);
    total.cached_tokens = delta.cached_tokens.unwrap_or(total.cached_tokens);
    total.cache_write_tokens = delta.cache_write_tokens.unwrap_or(total.cache_write_tokens);
    total.reasoning_tokens = delta.reasoning_tokens.unwrap_or(total.reasoning_tokens);
}
