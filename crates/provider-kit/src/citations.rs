//! Normalizes the citations of answers.

use serde_json::Value;
use volley_types::{Citation, CitedSpan, SpanUnit};

/// Maximum number of citations that are held back or deduplicated in one answer.
const MAX: usize = 4096;
/// Maximum size of the text that is kept to convert byte offsets, in bytes.
const MAX_TEXT: usize = 1 << 20;

/// Position in an answer's text, and the citations in it.
#[derive(Clone, Debug, Default)]
pub struct Passages {
    /// Characters so far.
    said: u32,
    /// The server's number of the open block, and its start in characters.
    block: Option<(u64, u32)>,
    /// The citations of the open block.
    held: Vec<Citation>,
    /// The last reported sources, for servers that refer to sources by index.
    pub sources: Vec<Citation>,
    /// The returned citations, for servers that repeat them.
    seen: Vec<Citation>,
    /// The text so far, for servers that count bytes.
    text: Option<String>,
}

impl Passages {
    /// Configures the state for a server that counts bytes.
    pub fn of_bytes(mut self) -> Self {
        self.text = Some(String::new());
        self
    }

    /// Advances the position by `text`.
    pub fn add(&mut self, text: &str) {
        let more = u32::try_from(text.chars().count()).unwrap_or(u32::MAX);
        self.said = self.said.saturating_add(more);
        if let Some(kept) = self.text.as_mut() {
            if kept.len() + text.len() <= MAX_TEXT {
                kept.push_str(text);
            } else {
                // Offsets into an incomplete text would be wrong.
                self.text = None;
            }
        }
    }

    /// Number of characters so far.
    pub fn said(&self) -> u32 {
        self.said
    }

    /// Opens block `block` at the current position, unless it is open already.
    pub fn enter(&mut self, block: u64) {
        if self.block.is_none_or(|(open, _)| open != block) {
            self.block = Some((block, self.said));
            self.held.clear();
        }
    }

    /// Holds a citation of the open block until the end of the block is known.
    pub fn hold(&mut self, citation: Option<Citation>) {
        if self.held.len() < MAX {
            self.held.extend(citation);
        }
    }

    /// Closes the open block and returns its citations with their character range.
    pub fn leave(&mut self) -> Option<Vec<Citation>> {
        let (_, start) = self.block.take()?;
        let mut held = std::mem::take(&mut self.held);
        for citation in &mut held {
            (citation.start, citation.end) = (Some(start), Some(self.said));
        }
        some(held)
    }

    /// Returns the citations that have not been returned before.
    pub fn fresh(&mut self, citations: Vec<Citation>) -> Option<Vec<Citation>> {
        let mut fresh = Vec::new();
        for citation in citations {
            if self.seen.len() < MAX && !self.seen.contains(&citation) {
                self.seen.push(citation.clone());
                fresh.push(citation);
            }
        }
        some(fresh)
    }

    /// Whether no citation has been returned.
    pub fn none_seen(&self) -> bool {
        self.seen.is_empty()
    }

    /// Converts a byte offset in the text, continued by `now`, to a character offset. `None` if the
    /// offset is not a character boundary, or the text was too long to keep.
    pub fn character(&self, now: &str, byte: u32) -> Option<u32> {
        let kept = self.text.as_deref()?;
        let byte = usize::try_from(byte).ok()?;
        let before = match kept.get(..byte) {
            Some(before) => before.chars().count(),
            None => {
                let more = now.get(..byte.checked_sub(kept.len())?)?;
                kept.chars().count() + more.chars().count()
            }
        };
        u32::try_from(before).ok()
    }
}

/// Returns `None` for an empty list, as in a delta.
pub fn some(citations: Vec<Citation>) -> Option<Vec<Citation>> {
    (!citations.is_empty()).then_some(citations)
}

/// A non-empty string field of an object.
pub fn text(told: &Value, name: &str) -> Option<String> {
    let text = told[name].as_str().filter(|text| !text.is_empty());
    text.map(str::to_owned)
}

/// A count in an object, if it fits 32 bits.
pub fn number(told: &Value, name: &str) -> Option<u32> {
    u32::try_from(told[name].as_u64()?).ok()
}

/// A range of a source, from two fields of an object.
pub fn stretch(unit: SpanUnit, told: &Value, from: &str, to: &str) -> Option<CitedSpan> {
    let (from, to) = (number(told, from)?, number(told, to)?);
    Some(CitedSpan { unit, from, to })
}

/// OpenAI's annotations, of chat completions and of responses. Chat completions nest the fields.
pub fn annotations(told: &[Value]) -> Option<Vec<Citation>> {
    some(told.iter().filter_map(annotation).collect())
}

/// One annotation; `None` if it has no source.
pub fn annotation(told: &Value) -> Option<Citation> {
    let kind = told["type"].as_str()?;
    let inner = &told[kind];
    let inner = if inner.is_object() { inner } else { told };
    let mut citation = Citation {
        title: text(inner, "title").or_else(|| text(inner, "filename")),
        source: text(inner, "file_id"),
        quote: text(inner, "quote"),
        document: number(inner, "index"),
        start: number(inner, "start_index"),
        end: number(inner, "end_index"),
        ..Citation::default()
    };
    match text(inner, "url") {
        // From another Volley, for a source without a web address.
        Some(url) if url.starts_with("document:") => {
            let name = &url["document:".len()..];
            match name.parse() {
                Ok(number) => citation.document = Some(number),
                Err(_) => citation.source = Some(name.to_owned()).filter(|name| !name.is_empty()),
            }
        }
        url => citation.url = url,
    }
    let known = citation.url.is_some() || citation.source.is_some() || citation.document.is_some();
    known.then_some(citation)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn annotations_of_both_interfaces_are_one() {
        let inside = json!({ "type": "url_citation", "url_citation": {
            "url": "https://a.example", "title": "A", "start_index": 1, "end_index": 4 } });
        let flat = json!({ "type": "url_citation", "url": "https://a.example", "title": "A",
            "start_index": 1, "end_index": 4 });
        let read = annotations(&[inside, flat]).unwrap();
        assert_eq!(read[0], read[1]);
        assert_eq!((read[0].start, read[0].end), (Some(1), Some(4)));
        let file =
            json!({ "type": "file_citation", "file_id": "f", "filename": "a.pdf", "index": 2 });
        let file = annotation(&file).unwrap();
        assert_eq!(
            (file.source.as_deref(), file.document),
            (Some("f"), Some(2))
        );
        let ours = json!({ "type": "url_citation", "url": "document:7" });
        assert_eq!(annotation(&ours).unwrap().document, Some(7));
        assert_eq!(annotation(&json!({ "type": "url_citation" })), None);
        assert_eq!(annotation(&json!(7)), None);
    }

    #[test]
    fn citations_of_a_block_span_its_text() {
        let mut passages = Passages::default();
        passages.enter(0);
        passages.add("Grüße ");
        assert_eq!(passages.leave(), None);
        passages.enter(1);
        passages.hold(Some(Citation::default()));
        passages.add("🦊!");
        let cited = passages.leave().unwrap();
        assert_eq!((cited[0].start, cited[0].end), (Some(6), Some(8)));
        assert_eq!(passages.leave(), None);
    }

    proptest! {
        #[test]
        fn a_byte_is_the_character_that_begins_there(
            kept in ".{0,12}", now in ".{0,12}", byte in 0..60_u32,
        ) {
            let mut passages = Passages::default().of_bytes();
            passages.add(&kept);
            let whole = kept + &now;
            let expected = usize::try_from(byte).ok().and_then(|byte| whole.get(..byte));
            let expected = expected.map(|before| u32::try_from(before.chars().count()).unwrap());
            prop_assert_eq!(passages.character(&now, byte), expected);
        }
    }
}
