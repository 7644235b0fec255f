//! Converts tokens to text incrementally, without incomplete characters and stop strings.

use std::collections::BTreeMap;

use volley_tool_calls::is_mark;

/// Decodes token ids. The text of a token may depend on the preceding ones.
pub trait Decode {
    /// Decodes `ids` without special tokens.
    fn decode(&self, ids: &[u32]) -> String;

    /// Decodes a single token.
    fn decode_one(&self, id: u32) -> String {
        self.decode(&[id])
    }

    /// Whether the text of a token is independent of the preceding ones, except for characters that
    /// span several tokens.
    fn is_context_free(&self) -> bool {
        false
    }
}

/// A tokenizer with a table of the texts of single tokens. Half of the decoding in a
/// [`Detokenizer`] is of single tokens, and a look-up takes a tenth of the time of decoding.
pub struct TokenTexts {
    tokenizer: tokenizers::Tokenizer,
    texts: Vec<Box<str>>,
    /// The special tokens around calls, by id.
    marks: BTreeMap<u32, String>,
    context_free: bool,
}

impl TokenTexts {
    /// Decodes every token once; `vocabulary` is the number of tokens.
    pub fn new(tokenizer: tokenizers::Tokenizer, vocabulary: usize) -> Self {
        let ids = 0..u32::try_from(vocabulary).unwrap_or(u32::MAX);
        let texts = ids.map(|id| text_of(&tokenizer, &[id]).into_boxed_str());
        let added = tokenizer.get_added_tokens_decoder().into_iter();
        let marks = added.filter(|(_, token)| token.special && is_mark(&token.content));
        Self {
            marks: marks.map(|(id, token)| (id, token.content)).collect(),
            texts: texts.collect(),
            // This decoder only concatenates the bytes of its tokens.
            context_free: matches!(
                tokenizer.get_decoder(),
                Some(tokenizers::DecoderWrapper::ByteLevel(_))
            ),
            tokenizer,
        }
    }

    /// Returns the mark of a special token around calls; `None` for other tokens. Marks have no
    /// other text.
    pub fn mark(&self, id: u32) -> Option<&str> {
        self.marks.get(&id).map(String::as_str)
    }

    /// Returns the id of a mark around calls; `None` if it is not a special token.
    pub fn mark_id(&self, name: &str) -> Option<u32> {
        let mut marks = self.marks.iter();
        marks.find_map(|(id, mark)| (mark == name).then_some(*id))
    }

    /// Decodes `ids` including special tokens.
    pub fn decode_whole(&self, ids: &[u32]) -> String {
        (*self.tokenizer).decode(ids, false).unwrap_or_default()
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &tokenizers::Tokenizer {
        &self.tokenizer
    }
}

fn text_of(tokenizer: &tokenizers::Tokenizer, ids: &[u32]) -> String {
    // Ids outside of the vocabulary have no text.
    (**tokenizer).decode(ids, true).unwrap_or_default()
}

impl Decode for TokenTexts {
    fn decode(&self, ids: &[u32]) -> String {
        text_of(&self.tokenizer, ids)
    }

    fn decode_one(&self, id: u32) -> String {
        let text = self.texts.get(id as usize);
        text.map_or_else(|| self.decode(&[id]), |text| text.to_string())
    }

    fn is_context_free(&self) -> bool {
        self.context_free
    }
}

/// Detokenizes the tokens of one answer incrementally.
///
/// Text is returned once all its tokens are known: a character may span several tokens, and the
/// text of a token may depend on the preceding one. Some tokens that were already returned are
/// therefore decoded again with each new one, and the difference is the new text.
#[derive(Debug, Default)]
pub struct Detokenizer {
    /// Returned tokens for context, followed by tokens that were not returned.
    window: Vec<u32>,
    /// Number of returned tokens in `window`.
    given: usize,
    /// The text of the returned tokens in `window`.
    given_text: String,
}

/// Number of tokens after which an incomplete character is returned as is, because it will not be
/// completed.
const MAX_PENDING: usize = 16;

impl Detokenizer {
    /// Adds a token and returns the text that it completes.
    pub fn push(&mut self, token: u32, decode: &impl Decode) -> String {
        if decode.is_context_free() && self.window.len() == self.given {
            let text = decode.decode_one(token);
            if !text.contains(char::REPLACEMENT_CHARACTER) {
                self.window.clear();
                self.window.push(token);
                self.given = 1;
                self.given_text.clone_from(&text);
                return text;
            }
        }
        self.window.push(token);
        let text = decode.decode(&self.window);
        let pending = self.window.len() - self.given;
        if text.ends_with(char::REPLACEMENT_CHARACTER) && pending < MAX_PENDING {
            return String::new();
        }
        self.give(&text, decode)
    }

    /// Returns the remaining text.
    pub fn finish(&mut self, decode: &impl Decode) -> String {
        let text = decode.decode(&self.window);
        self.give(&text, decode)
    }

    fn give(&mut self, text: &str, decode: &impl Decode) -> String {
        let new = text[common(text, &self.given_text)..].to_owned();
        self.window.drain(..self.given);
        self.given = self.window.len();
        self.given_text = match self.window.as_slice() {
            [one] => decode.decode_one(*one),
            window => decode.decode(window),
        };
        new
    }
}

/// Length of the common prefix of two texts, in bytes of complete characters. It covers the second
/// text, unless a token changed the text before it. The changed text is then returned again instead
/// of lost.
fn common(one: &str, other: &str) -> usize {
    let pairs = one.char_indices().zip(other.chars());
    let alike = pairs.take_while(|((_, one), other)| one == other);
    alike
        .last()
        .map_or(0, |((at, last), _)| at + last.len_utf8())
}

/// Holds back text that may be the beginning of a stop string.
#[derive(Debug)]
pub struct StopFilter {
    stops: Vec<String>,
    /// Whether the stop string is part of the text.
    included: bool,
    held: String,
    /// Index of the stop string that was found.
    found: Option<usize>,
}

/// The result of a piece of text.
#[derive(Debug, PartialEq, Eq)]
pub struct FilteredText {
    /// Text that is safe to return.
    pub text: String,
    /// Whether a stop string was found. Text after it is dropped.
    pub stopped: bool,
}

impl StopFilter {
    /// Creates a filter for `stops`. If `included`, the text ends with the stop string, otherwise
    /// before it.
    pub fn new(stops: Vec<String>, included: bool) -> Self {
        Self {
            stops,
            included,
            held: String::new(),
            found: None,
        }
    }

    /// Adds a piece of text and searches it for stop strings.
    pub fn push(&mut self, text: &str) -> FilteredText {
        if self.stops.is_empty() {
            return FilteredText {
                text: text.to_owned(),
                stopped: false,
            };
        }
        self.held.push_str(text);
        let found = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            let at = self.held.find(stop.as_str())?;
            Some((at, if self.included { stop.len() } else { 0 }, index))
        });
        if let Some((at, length, index)) = found.min() {
            self.found = Some(index);
            self.held.truncate(at + length);
            return FilteredText {
                text: std::mem::take(&mut self.held),
                stopped: true,
            };
        }
        let keep = self
            .stops
            .iter()
            .map(|stop| overlap(&self.held, stop))
            .max()
            .unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        FilteredText {
            text: std::mem::replace(&mut self.held, rest),
            stopped: false,
        }
    }

    /// Adds a piece of text without searching it.
    pub fn pass(&mut self, text: &str) -> FilteredText {
        self.held.push_str(text);
        FilteredText {
            text: std::mem::take(&mut self.held),
            stopped: false,
        }
    }

    /// The stop string that was found.
    pub fn found(&self) -> Option<&str> {
        self.stops.get(self.found?).map(String::as_str)
    }

    /// Returns the held text at the end of the answer.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Length of the longest suffix of `text` that is the beginning of `stop`, in bytes.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len().saturating_sub(1));
    let fits = |length: &usize| {
        stop.is_char_boundary(*length) && text.as_bytes().ends_with(&stop.as_bytes()[..*length])
    };
    (1..=longest).rev().find(fits).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One byte per token, like byte-level tokenizers for unknown text.
    struct Bytes;

    impl Decode for Bytes {
        fn decode(&self, ids: &[u32]) -> String {
            let bytes: Vec<u8> = ids.iter().map(|id| *id as u8).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        }

        fn is_context_free(&self) -> bool {
            true
        }
    }

    fn stops(stops: &[&str]) -> StopFilter {
        StopFilter::new(stops.iter().map(|stop| (*stop).to_owned()).collect(), false)
    }

    #[test]
    fn a_stop_string_over_several_pieces_is_found_and_cut() {
        let mut filter = stops(&["END", "\n\n"]);
        let pieces = ["one E", "Nd E", "N", "D two"].map(|piece| filter.push(piece));
        let texts: Vec<_> = pieces.iter().map(|passed| passed.text.as_str()).collect();
        assert_eq!(texts, ["one ", "ENd ", "", ""]);
        assert!(pieces[3].stopped);
        assert_eq!(filter.found(), Some("END"));
        assert_eq!(stops(&["END"]).found(), None);
    }

    #[test]
    fn a_stop_string_that_is_included_is_given_out() {
        let mut filter = StopFilter::new(vec!["END".to_owned()], true);
        let texts = ["one E", "ND two"].map(|piece| filter.push(piece).text);
        assert_eq!(texts.concat(), "one END");
        assert_eq!(filter.pass("END").text, "END", "before the least length");
    }

    proptest! {
        #[test]
        fn no_piece_splits_a_character_and_all_pieces_spell_the_text(text in "\\PC{0,40}") {
            let mut detokenizer = Detokenizer::default();
            let mut spelled = String::new();
            for byte in text.bytes() {
                let piece = detokenizer.push(u32::from(byte), &Bytes);
                prop_assert!(text.contains(char::REPLACEMENT_CHARACTER) || !piece.contains(char::REPLACEMENT_CHARACTER));
                spelled.push_str(&piece);
            }
            spelled.push_str(&detokenizer.finish(&Bytes));
            prop_assert_eq!(spelled, text);
        }

        #[test]
        fn of_any_bytes_all_that_is_text_is_given(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let mut detokenizer = Detokenizer::default();
            let mut spelled = String::new();
            for byte in &bytes {
                spelled.push_str(&detokenizer.push(u32::from(*byte), &Bytes));
            }
            spelled.push_str(&detokenizer.finish(&Bytes));
            // The number of replacement characters for invalid bytes depends on the positions of
            // splits.
            let whole = String::from_utf8_lossy(&bytes).replace(char::REPLACEMENT_CHARACTER, "");
            prop_assert_eq!(spelled.replace(char::REPLACEMENT_CHARACTER, ""), whole);
        }

        #[test]
        fn the_filter_agrees_with_a_search_of_the_whole(
            pieces in proptest::collection::vec("[abé]{0,4}", 0..12),
            wanted in proptest::collection::vec("[abé]{1,4}", 0..3),
        ) {
            let whole = pieces.concat();
            let mut filter = StopFilter::new(wanted.clone(), false);
            let mut given = String::new();
            let mut stopped = false;
            for piece in &pieces {
                let passed = filter.push(piece);
                given.push_str(&passed.text);
                if passed.stopped {
                    stopped = true;
                    break;
                }
            }
            if !stopped {
                given.push_str(&filter.finish());
                prop_assert_eq!(&given, &whole);
                prop_assert!(wanted.iter().all(|stop| !whole.contains(stop.as_str())));
            } else {
                prop_assert!(whole.starts_with(&given));
                prop_assert!(wanted.iter().all(|stop| !given.contains(stop.as_str())));
                prop_assert!(wanted.iter().any(|stop| whole[given.len()..].starts_with(stop.as_str())));
            }
        }
    }
}
