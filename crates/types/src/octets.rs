//! Arbitrary bytes in a text column. Pure.
//!
//! Tensors of strings hold bytes, Arrow's text columns hold UTF-8. Bytes that are UTF-8 stand as
//! they are. All others stand as [`MARK`] and one character for each byte, so that nothing is lost
//! on the way through the cluster; so do texts that begin with the mark themselves.

use std::borrow::Cow;

/// What stands before bytes that are no text: a code point that Unicode has set aside for a
/// program's own use, which no text has.
pub const MARK: char = '\u{10FFFE}';

/// `bytes` as the text that stands for them.
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

/// The bytes that `text` stands for.
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
