//! The normalized events of an answer.

use volley_types::{Citation, Details, ErrorCode, FinishReason, Usage};

/// The content of an event; empty for events without content.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// A text delta.
    pub text: Option<String>,
    /// A reasoning delta.
    pub thinking: Option<String>,
    /// A JSON array of tool-call deltas.
    pub tool_calls: Option<String>,
    /// The finish reason.
    pub finish_reason: Option<FinishReason>,
    /// Number of tokens in the prompt.
    pub prompt_tokens: Option<u32>,
    /// Number of tokens in the completion.
    pub completion_tokens: Option<u32>,
    /// Number of prompt tokens that were read from a cache.
    pub cached_tokens: Option<u32>,
    /// Number of prompt tokens that were written to a cache.
    pub cache_write_tokens: Option<u32>,
    /// Number of completion tokens that were reasoning.
    pub reasoning_tokens: Option<u32>,
    /// Log probabilities of the text's tokens, as a JSON array in OpenAI's format.
    pub logprobs: Option<String>,
    /// Citations in the text. An empty list starts a passage whose citations follow later.
    pub citations: Option<Vec<Citation>>,
    /// Details that only some dialects can express.
    pub details: Option<Box<Details>>,
    /// Such details that belong to the end of the answer.
    pub end: Option<Box<Details>>,
    /// Why the answer is unusable, as a clause. The content before it is valid.
    pub unusable: Option<String>,
}

impl Delta {
    /// Whether the delta has a token count.
    pub fn has_usage(&self) -> bool {
        self.prompt_tokens.is_some() || self.completion_tokens.is_some()
    }

    /// The details, created if absent.
    pub fn details(&mut self) -> &mut Details {
        self.details.get_or_insert_default()
    }

    /// The details of the end, created if absent.
    pub fn end(&mut self) -> &mut Details {
        self.end.get_or_insert_default()
    }

    /// Records the server's finish reason if it says that a stop string ended the answer.
    pub fn mark_stop_sequence(&mut self, reason: Option<&str>) {
        if let Some(reason) = reason.filter(|it| *it == "stop_sequence") {
            self.end().stop_reason = Some(reason.to_owned());
        }
    }

    /// Sets the finish reason, which the server calls `native`. After any end but the known ones
    /// (`None`) the answer is unusable.
    pub fn finish(&mut self, native: &str, reason: Option<FinishReason>) {
        match reason {
            Some(reason) => self.finish_reason = Some(reason),
            None => self.unusable = Some(format!("it ended with '{native}'")),
        }
    }

    /// Marks an answer with content that has no form for callers.
    pub fn lacks_form(&mut self, kind: &str) {
        self.unusable = Some(format!(
            "it has content of the kind '{kind}', which cannot be passed on"
        ));
    }

    /// Whether the delta has content for the caller besides usage and the finish reason.
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

/// The result of reading one event.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Content; possibly empty.
    Delta(Delta),
    /// Content of the final event.
    Last(Delta),
    /// Several deltas, in order.
    All(Vec<Delta>),
    /// The final event, without content.
    End,
    /// The server reports a failure of unknown class: its message.
    Failed(String),
    /// The server rejects the request: the error code and its message.
    Refused(ErrorCode, String),
    /// The account at the server has no credit or quota left: the server's message.
    Exhausted(String),
}

/// Overwrites the counts in `total` with those in `delta`.
pub fn usage(total: &mut Usage, delta: &Delta) {
    total.prompt_tokens = delta.prompt_tokens.unwrap_or(total.prompt_tokens);
    total.completion_tokens = delta.completion_tokens.unwrap_or(total.completion_tokens);
    total.cached_tokens = delta.cached_tokens.unwrap_or(total.cached_tokens);
    total.cache_write_tokens = delta.cache_write_tokens.unwrap_or(total.cache_write_tokens);
    total.reasoning_tokens = delta.reasoning_tokens.unwrap_or(total.reasoning_tokens);
}
