//! Memory of request bodies, within a common limit ([`volley_types::Intake`]). A request above the
//! limit is rejected immediately; bodies never wait for each other.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;
use volley_types::{ErrorCode, PredictError, Share};

/// Memory of a parsed object with a few members, in bytes: one node of its map.
const OBJECT_BYTES: usize = 640;
/// Memory of a member of a large object, in bytes: its part of the nodes, which may be half full.
const MEMBER_BYTES: usize = 128;
const VALUE_BYTES: usize = size_of::<Value>();
/// Minimum memory of a text besides its value, in bytes.
const TEXT_BYTES: usize = 16;
/// Maximum growth factor of a body, and the size from which it applies.
const MAX_GROWTH: usize = 8;
const MAX_GROWTH_FROM: usize = 4 << 20;

/// Memory of a body's tree besides the body, in bytes.
///
/// # Errors
/// `TooLarge` if the tree is many times the size of the body.
pub fn tree_room(text: &[u8]) -> Result<usize, PredictError> {
    let tree = tree_bytes(text);
    limit_growth(text.len(), tree)?;
    Ok(tree - text.len())
}

/// Rejects a body of `size` bytes whose tree needs `tree` bytes, if that is many times as much.
pub(crate) fn limit_growth(size: usize, tree: usize) -> Result<(), PredictError> {
    if MAX_GROWTH_FROM <= size && MAX_GROWTH * size < tree {
        return Err(PredictError::new(
            ErrorCode::TooLarge,
            format!(
                "the request's body of {size} bytes has so many small values that parsing it \
                 needs more than {MAX_GROWTH} times its size; send it in parts of less than \
                 {MAX_GROWTH_FROM} bytes, or send tensors in binary"
            ),
        ));
    }
    Ok(())
}

/// Memory share of a request, once its body is read. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct BodyShare(Arc<Mutex<Option<(Share, usize)>>>);

impl BodyShare {
    /// Keeps `share` for a body of `body` bytes.
    pub fn keep(&self, share: Share, body: usize) {
        *self.0.lock() = Some((share, body));
    }

    /// The share that a streaming response keeps for the rows, which need about the size of the
    /// body; `None` if no body was read.
    pub fn rows(&self) -> Option<Share> {
        let (mut share, body) = self.0.lock().take()?;
        share.shrink_to(body);
        Some(share)
    }
}

/// Upper bound for the memory of a JSON text's tree in bytes, computed from its punctuation.
pub(crate) fn tree_bytes(text: &[u8]) -> usize {
    let (mut bytes, mut rest) = (text.len(), text);
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        bytes += match byte {
            b',' => VALUE_BYTES,
            b'[' => 4 * VALUE_BYTES,
            b'{' => OBJECT_BYTES,
            b':' => MEMBER_BYTES,
            b'"' => {
                rest = behind_text(rest);
                TEXT_BYTES
            }
            _ => 0,
        };
    }
    bytes
}

/// Skips to the end of the string in which `rest` starts.
fn behind_text(mut rest: &[u8]) -> &[u8] {
    while let Some(at) = memchr::memchr2(b'"', b'\\', rest) {
        let escaped = rest[at] == b'\\';
        rest = rest
            .get(at + 1 + usize::from(escaped)..)
            .unwrap_or_default();
        if !escaped {
            return rest;
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use volley_types::Intake;

    use super::*;

    #[test]
    fn a_body_of_many_small_values_is_too_large_and_a_small_one_or_long_texts_are_not() {
        let dense = format!("[{}1]", "1,".repeat(MAX_GROWTH_FROM / 2));
        let error = tree_room(dense.as_bytes()).unwrap_err();
        assert_eq!(error.code, ErrorCode::TooLarge);
        assert!(tree_room(&dense.as_bytes()[..MAX_GROWTH_FROM - 1]).is_ok());
        let fits = r#""a few words and more","and what there is besides","#;
        let long = fits.repeat(3 * MAX_GROWTH_FROM / fits.len());
        assert!(tree_room(long.as_bytes()).is_ok());
    }

    #[test]
    fn what_is_held_is_given_back_but_for_the_rows() {
        let intake = Intake::new(100);
        let mut share = intake.share();
        share.grow(50).unwrap();
        let held = BodyShare::default();
        held.keep(share, 10);
        let rows = held.clone().rows().unwrap();
        assert!(held.rows().is_none());
        intake.share().grow(90).unwrap();
        drop(rows);
        intake.share().grow(100).unwrap();
    }

    #[test]
    fn a_tree_is_estimated_from_above() {
        for (text, at_least) in [
            ("[1,2,3,4]", 4 * VALUE_BYTES),
            ("[[],[],[]]", 3 * VALUE_BYTES),
            (r#"[{"a":1},{"a":1}]"#, 2 * OBJECT_BYTES),
        ] {
            assert!(at_least <= tree_bytes(text.as_bytes()), "{text}");
        }
        let text = r#"["a,b,[{:\",\\",""]"#;
        assert!(tree_bytes(text.as_bytes()) < text.len() + 9 * VALUE_BYTES);
        assert_eq!(tree_bytes(br#""abc\"#), 5 + TEXT_BYTES);
        assert_eq!(tree_bytes(b""), 0);
    }
}
