//! Counts the reasoning tokens of an answer: those between the tags that the model's chat template
//! uses, including the tags.

/// The opening and closing tags of reasoning in known templates.
const TAGS: [(&str, &str); 5] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
];

/// The reasoning tags of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tags {
    open: &'static str,
    close: &'static str,
}

impl Tags {
    /// The tags in `template`; `None` if it has none.
    pub(crate) fn of(template: &str) -> Option<Self> {
        let found = TAGS.iter().find(|(_, close)| template.contains(close));
        let found = found.or_else(|| TAGS.iter().find(|(open, _)| template.contains(open)));
        found.map(|(open, close)| Self { open, close })
    }

    /// Whether the token with this name is one of the tags.
    pub(crate) fn has(&self, name: &str) -> bool {
        name == self.open || name == self.close
    }
}

/// The position of an answer relative to its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReasoningPhase {
    /// Before the opening tag, which may not come.
    Before,
    Inside,
    Behind,
}

/// The counter of one answer.
#[derive(Clone, Debug)]
pub(crate) struct Reasoning {
    tags: Tags,
    place: ReasoningPhase,
    /// The end of the text, in which a tag may have begun.
    said: String,
    count: u32,
}

impl Reasoning {
    /// Creates the counter of the answer to `prompt`, which may already contain the opening tag.
    pub(crate) fn begin(tags: Tags, prompt: &str) -> Self {
        let is_open = prompt.trim_end().ends_with(tags.open);
        Self {
            tags,
            place: if is_open {
                ReasoningPhase::Inside
            } else {
                ReasoningPhase::Before
            },
            said: String::new(),
            count: 0,
        }
    }

    /// Whether no further token can be reasoning.
    pub(crate) fn is_over(&self) -> bool {
        self.place == ReasoningPhase::Behind
    }

    /// Adds the text of the next token.
    pub(crate) fn push(&mut self, text: &str) {
        if self.is_over() {
            return;
        }
        self.count = self.count.saturating_add(1);
        self.said.push_str(text);
        if self.place == ReasoningPhase::Before {
            let said = self.said.trim_start();
            if let Some(rest) = said.strip_prefix(self.tags.open) {
                self.said = rest.to_owned();
                self.place = ReasoningPhase::Inside;
            } else if !self.tags.open.starts_with(said) {
                // The answer has no reasoning.
                self.count = 0;
                self.place = ReasoningPhase::Behind;
            }
        }
        if self.place != ReasoningPhase::Inside {
            return;
        }
        if self.said.contains(self.tags.close) {
            self.place = ReasoningPhase::Behind;
        }
        // Keep at most the length of a partial tag.
        let kept = self.said.len().saturating_sub(self.tags.close.len());
        let kept = (0..=kept).rev().find(|at| self.said.is_char_boundary(*at));
        self.said.drain(..kept.unwrap_or(0));
    }

    /// Number of reasoning tokens so far.
    pub(crate) fn count(&self) -> u32 {
        match self.place {
            ReasoningPhase::Before => 0,
            ReasoningPhase::Inside | ReasoningPhase::Behind => self.count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(prompt: &str, tokens: &[&str]) -> u32 {
        let tags = Tags::of("{% if enable_thinking %}<think>{% endif %}</think>").unwrap();
        let mut reasoning = Reasoning::begin(tags, prompt);
        tokens.iter().for_each(|token| reasoning.push(token));
        reasoning.count()
    }

    #[test]
    fn tokens_between_the_tags_are_reasoning() {
        assert_eq!(count("", &["<think>", "a", "b", "</think>", "c", "d"]), 4);
        assert_eq!(
            count("", &["\n", "<th", "ink", ">a", "</thi", "nk>c", "d"]),
            6
        );
        // The prompt opens the reasoning, or opens and closes it.
        assert_eq!(count("…<think>\n", &["a", "é", "</think>", "c"]), 3);
        assert_eq!(count("…<think>\n\n</think>\n\n", &["a", "b"]), 0);
        // A truncated answer is reasoning to its end; a text about the tags is not reasoning.
        assert_eq!(count("", &["<think>", "a", "b"]), 3);
        assert_eq!(count("", &["The ", "tag ", "<think>", "a", "</think>"]), 0);
        assert_eq!(count("", &["<think>", "a", "</think>", "<think>", "b"]), 3);
        assert_eq!(count("", &["<th"]), 0);
        assert_eq!(count("", &[]), 0);
        assert_eq!(Tags::of("{{ messages }}"), None);
    }
}
