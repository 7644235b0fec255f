//! Bounded outlines of large JSON bodies, and trees of their small parts within a request's memory.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use volley_types::{PredictError, Share};

use crate::intake::{limit_growth, tree_bytes};

/// Maximum members of an object, and items of a list, in an outline. A body with more is parsed as
/// a tree, whose memory is limited: a member of an outline needs many times its text.
const MOST: usize = 4096;

/// The members of an object as text. An object with more than 4,096 members is an error; parse it
/// as a tree whose memory is counted.
#[derive(Debug)]
pub struct Members<'t>(pub BTreeMap<String, &'t RawValue>);

/// The items of a list as text.
pub(super) struct Items<'t>(pub(super) Vec<&'t RawValue>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

impl<'de> Deserialize<'de> for Items<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ItemsVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object of at most {MOST} members")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Members<'de>, A::Error> {
        let mut all = BTreeMap::new();
        while let Some((name, value)) = members.next_entry::<String, &'de RawValue>()? {
            if all.len() == MOST {
                return Err(A::Error::invalid_length(all.len() + 1, &self));
            }
            all.insert(name, value);
        }
        Ok(Members(all))
    }
}

struct ItemsVisitor;

impl<'de> Visitor<'de> for ItemsVisitor {
    type Value = Items<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MOST} items")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Items<'de>, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element::<&'de RawValue>()? {
            if all.len() == MOST {
                return Err(A::Error::invalid_length(all.len() + 1, &self));
            }
            all.push(item);
        }
        Ok(Items(all))
    }
}

/// Parses the parts of a body that are not compact. Their memory counts as that of the request.
pub(super) struct Trees<'s> {
    share: &'s mut Share,
    /// Size of the whole body.
    body: usize,
    /// Memory of all trees so far, in bytes.
    bytes: usize,
}

impl<'s> Trees<'s> {
    pub(super) fn new(body: usize, share: &'s mut Share) -> Self {
        Self {
            share,
            body,
            bytes: 0,
        }
    }

    /// Parses a part of the body.
    ///
    /// # Errors
    /// `TooLarge` if the trees are many times the size of the body. Those of [`Share::grow`].
    /// `InvalidInput` if the part is not JSON.
    pub(super) fn parse(&mut self, part: &RawValue) -> Result<Value, PredictError> {
        let text = part.get();
        let tree = tree_bytes(text.as_bytes());
        self.bytes += tree;
        limit_growth(self.body, self.bytes)?;
        self.share.grow(tree - text.len())?;
        serde_json::from_str(text).map_err(|error| {
            PredictError::invalid(format!("the request's body is not valid JSON: {error}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use volley_types::{ErrorCode, Intake};

    use super::*;

    #[test]
    fn outlines_have_a_limit() {
        let object = |count: usize| {
            let members = (0..count).map(|n| format!("\"{n}\":{n}"));
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        };
        let list = |count: usize| format!("[{}0]", "0,".repeat(count - 1));
        assert!(serde_json::from_str::<Members<'_>>(&object(MOST)).is_ok());
        assert!(serde_json::from_str::<Members<'_>>(&object(MOST + 1)).is_err());
        assert!(serde_json::from_str::<Items<'_>>(&list(MOST)).is_ok());
        assert!(serde_json::from_str::<Items<'_>>(&list(MOST + 1)).is_err());
    }

    #[test]
    fn trees_are_counted_before_they_are_parsed() {
        let dense = format!("[{}\"\"]", "\"\",".repeat(1 << 19));
        let part: &RawValue = serde_json::from_str(&dense).unwrap();
        let mut share = Intake::new(1 << 20).share();
        let error = Trees::new(dense.len(), &mut share).parse(part).unwrap_err();
        assert_eq!((error.code, share.bytes()), (ErrorCode::TooLarge, 0));
        // Parts that fit each are limited together.
        let mut share = Intake::default().share();
        let mut trees = Trees::new(tree_bytes(dense.as_bytes()) / 8 + 1, &mut share);
        assert!(trees.parse(part).is_ok());
        assert_eq!(trees.parse(part).unwrap_err().code, ErrorCode::TooLarge);
    }
}
