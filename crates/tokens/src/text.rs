//! Tokens into text, a piece at a time: never half a character, and nothing of a stop string.

use std::collections::BTreeMap;

use volley_tool_calls::is_mark;

/// Turns ids into text; a token's text can depend on those before it.
pub trait Decode {
    /// The text of `ids`, special tokens left out.
    fn decode(&self, ids: &[u32]) -> String;

    /// The text of one token alone.
    fn decode_one(&self, id: u32) -> String {
        self.decode(&[id])
    }

    /// Whether a token is written the same whatever stands before it, but for characters that
    /// are spread over several.
    fn is_context_free(&self) -> bool {
        false
    }
}

/// A tokenizer with the text of every token at hand: half of what a [`Detokenizer`] asks for is
/// the text of one token, and a look-up costs a tenth of the decoding.
pub struct TokenTexts {
    tokenizer: tokenizers::Tokenizer,
    texts: Vec<Box<str>>,
    /// Special tokens that calls are written with, by their ids.
    marks: BTreeMap<u32, String>,
    context_free: bool,
}

impl TokenTexts {
    /// Decodes every token of the vocabulary once.
    pub fn new(tokenizer: tokenizers::Tokenizer, vocabulary: usize) -> Self {
        let ids = 0..u32::try_from(vocabulary).unwrap_or(u32::MAX);
        let texts = ids.map(|id| text_of(&tokenizer, &[id]).into_boxed_str());
        let added = tokenizer.get_added_tokens_decoder().into_iter();
        let marks = added.filter(|(_, token)| token.special && is_mark(&token.content));
        Self {
            marks: marks.map(|(id, token)| (id, token.content)).collect(),
            texts: texts.collect(),
            // Joins the bytes of its tokens, and nothing else.
            context_free: matches!(
                tokenizer.get_decoder(),
                Some(tokenizers::DecoderWrapper::ByteLevel(_))
            ),
            tokenizer,
        }
    }

    /// The mark that a special token writes calls with; such tokens have no other text.
    pub fn mark(&self, id: u32) -> Option<&str> {
        self.marks.get(&id).map(String::as_str)
    }

    /// The special token of that name, if it is a mark that calls are written with.
    pub fn mark_id(&self, name: &str) -> Option<u32> {
        let mut marks = self.marks.iter();
        marks.find_map(|(id, mark)| (mark == name).then_some(*id))
    }

    /// The text of `ids`, with that of special tokens.
    pub fn decode_whole(&self, ids: &[u32]) -> String {
        (*self.tokenizer).decode(ids, false).unwrap_or_default()
    }

    /// The tokenizer itself.
    pub fn tokenizer(&self) -> &tokenizers::Tokenizer {
        &self.tokenizer
    }
}

fn text_of(tokenizer: &tokenizers::Tokenizer, ids: &[u32]) -> String {
    // An id outside the vocabulary has no text.
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

/// Detokenises one request's tokens as they come.
///
/// Text is given out once the tokens that make it are all there: a character may be spread over
/// several tokens, and how a token is written may depend on the one before it. So a few tokens
/// that were given out already are decoded again with each new one, and what they add is new.
#[derive(Debug, Default)]
pub struct Detokenizer {
    /// Tokens that were given out and serve as context, then tokens that were not.
    window: Vec<u32>,
    /// How many of them were given out.
    given: usize,
    /// Their text.
    given_text: String,
}

/// Tokens that make no whole character for this long never will: their text is given as it is.
const MAX_PENDING: usize = 16;

impl Detokenizer {
    /// Takes one token and gives the text that it completes.
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

    /// The text of what is still held back.
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

/// How many bytes of whole characters two texts begin with alike. All of the second, unless a
/// token changed how those before it are written; what differs then is given again, not lost.
fn common(one: &str, other: &str) -> usize {
    let pairs = one.char_indices().zip(other.chars());
    let alike = pairs.take_while(|((_, one), other)| one == other);
    alike
        .last()
        .map_or(0, |((at, last), _)| at + last.len_utf8())
}

/// Holds back text that may turn out to be the beginning of a stop string.
#[derive(Debug)]
pub struct StopFilter {
    stops: Vec<String>,
    /// What was found is given out too.
    included: bool,
    held: String,
}

/// What a piece of text came to.
#[derive(Debug, PartialEq, Eq)]
pub struct FilteredText {
    /// What may be given out.
    pub text: String,
    /// A stop string was found; what followed it is gone.
    pub stopped: bool,
}

impl StopFilter {
    /// A filter for these strings; the one that is found is given out where it is `included`.
    pub fn new(stops: Vec<String>, included: bool) -> Self {
        Self {
            stops,
            included,
            held: String::new(),
        }
    }

    /// Takes a piece of text.
    pub fn push(&mut self, text: &str) -> FilteredText {
        if self.stops.is_empty() {
            return FilteredText {
                text: text.to_owned(),
                stopped: false,
            };
        }
        self.held.push_str(text);
        let found = self.stops.iter().filter_map(|stop| {
            let at = self.held.find(stop.as_str())?;
            Some((at, if self.included { stop.len() } else { 0 }))
        });
        if let Some((at, length)) = found.min() {
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

    /// Takes a piece of text in which nothing is looked for.
    pub fn pass(&mut self, text: &str) -> FilteredText {
        self.held.push_str(text);
        FilteredText {
            text: std::mem::take(&mut self.held),
            stopped: false,
        }
    }

    /// What was held back, at the end.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// How many bytes at the end of `text` are the beginning of `stop`.
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

    /// One byte a token, the way byte-level tokenisers break up what they do not know.
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
            // How many replacement characters stand for broken bytes depends on where they are cut.
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
