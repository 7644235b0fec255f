//! Arbitrary bytes in a text column. Pure.
//!
//! Tensors of strings contain bytes, but Arrow's text columns contain UTF-8. Valid UTF-8 stays
//! unchanged. All other bytes become [`MARK`] and one character for each byte, so that no byte is
//! lost. Texts that start with the mark are encoded in the same way.

use std::borrow::Cow;

/// Prefix of encoded bytes: a private-use code point, which does not occur in texts.
pub const MARK: char = '\u{10FFFE}';

/// Encodes `bytes` as text.
#[must_use]
pub fn to_text(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.starts_with(MARK) => Cow::Borrowed(text),
        _ => {
            let marked = std::iter::once(MARK).chain(bytes.iter().map(|byte| char::from(*byte)));
            Cow::Owned(marked.collect())
        }
    }
}

/// Decodes the bytes of `text`.
#[must_use]
pub fn to_bytes(text: &str) -> Cow<'_, [u8]> {
    let marked = text.strip_prefix(MARK).and_then(|rest| {
        let bytes = rest.chars().map(|c| u8::try_from(u32::from(c)).ok());
        bytes.collect::<Option<Vec<u8>>>()
    });
    marked.map_or(Cow::Borrowed(text.as_bytes()), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_stands_as_it_is_and_other_bytes_behind_a_mark() {
        assert_eq!(to_text("é".as_bytes()), "é");
        assert_eq!(to_text(b"\xff\0"), "\u{10FFFE}\u{ff}\0");
        let own = "\u{10FFFE}a".as_bytes();
        assert_eq!(to_bytes(&to_text(own)).as_ref(), own);
        let foreign = "\u{10FFFE}€";
        assert_eq!(to_bytes(foreign).as_ref(), foreign.as_bytes());
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let text = to_text(&bytes).into_owned();
            let back = to_bytes(&text).into_owned();
            prop_assert_eq!(back, bytes);
        }
    }
}
