//! The parts of an answer whose end repeats the deltas: only what they did not bring is added.

/// Maximum number of parts that are known in one answer, and of bytes that are kept of one.
const MAX_PARTS: usize = 4_096;
const MAX_KEPT: usize = 4 << 20;

/// What a part contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartKind {
    /// Text or a refusal.
    Text,
    /// Reasoning.
    Reasoning,
    /// A summary of reasoning.
    Summary,
    /// Citations.
    Notes,
    /// Arguments of a call.
    Arguments,
}

/// A part: its kind, the index of its item, and its index there.
pub type PartId = (PartKind, u64, u64);

/// The parts of one answer.
#[derive(Clone, Debug, Default)]
pub struct AnswerParts {
    known: Vec<Part>,
}

#[derive(Clone, Debug)]
struct Part {
    id: PartId,
    /// The position of the answer's text at the part's start, in characters.
    start: u32,
    /// The deltas so far; unused for text.
    kept: String,
    /// Whether the end of the part was read.
    ended: bool,
}

impl AnswerParts {
    /// Forgets the parts of item `item`, because another one with that index begins.
    pub fn forget(&mut self, item: u64) {
        self.known.retain(|part| part.id.1 != item);
    }

    /// Begins a part of text at the position `at`, unless it is known.
    pub fn begin(&mut self, id: PartId, at: u32) {
        if self.place(id).is_none() && self.known.len() < MAX_PARTS {
            self.known.push(Part {
                id,
                start: at,
                kept: String::new(),
                ended: false,
            });
        }
    }

    /// Adds a delta to a part.
    pub fn add(&mut self, id: PartId, delta: &str) {
        self.begin(id, 0);
        if let Some(part) = self.place(id)
            && part.kept.len() + delta.len() <= MAX_KEPT
        {
            part.kept.push_str(delta);
        }
    }

    /// Whether a part is known.
    pub fn knows(&self, id: PartId) -> bool {
        self.known.iter().any(|part| part.id == id)
    }

    /// Ends a part of text and returns the rest of `whole` behind the deltas. The answer's text is
    /// at the position `at`.
    pub fn rest_of_text(&mut self, id: PartId, whole: &str, at: u32) -> Option<String> {
        self.begin(id, at);
        let part = self.place(id).filter(|part| !part.ended)?;
        part.ended = true;
        let heard = usize::try_from(at.saturating_sub(part.start)).ok()?;
        let rest: String = whole.chars().skip(heard).collect();
        (!rest.is_empty()).then_some(rest)
    }

    /// Ends any other part and returns the rest of `whole` behind the deltas: nothing if `whole` is
    /// another text than they began.
    pub fn rest(&mut self, id: PartId, whole: &str) -> Option<String> {
        self.begin(id, 0);
        let part = self.place(id).filter(|part| !part.ended)?;
        part.ended = true;
        let rest = whole.strip_prefix(part.kept.as_str())?;
        (!rest.is_empty()).then(|| rest.to_owned())
    }

    fn place(&mut self, id: PartId) -> Option<&mut Part> {
        self.known.iter_mut().rev().find(|part| part.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_part_adds_only_what_its_deltas_did_not_bring() {
        let (text, input) = ((PartKind::Text, 0, 0), (PartKind::Arguments, 1, 0));
        let mut parts = AnswerParts::default();
        parts.begin(text, 2);
        assert_eq!(parts.rest_of_text(text, "äbcd", 4), Some("cd".to_owned()));
        assert_eq!(parts.rest_of_text(text, "äbcd", 6), None, "it has ended");
        let silent = (PartKind::Text, 2, 0);
        assert_eq!(parts.rest_of_text(silent, "ef", 6), Some("ef".to_owned()));
        parts.add(input, "{\"a\":");
        assert_eq!(parts.rest(input, "{\"a\":1}"), Some("1}".to_owned()));
        parts.forget(1);
        parts.add(input, "{\"a\":1}");
        assert_eq!(parts.rest(input, "{ \"a\": 1 }"), None, "another text");
    }
}
