//! Who a coordinator is to the others: its id, the incarnation of its data directory, and which
//! process over that directory it is.
//!
//! An id alone proves nothing. A node whose disk was lost has its id in its file still, and so has
//! a second process over a copy of the directory, or one over a copy that is older than what the
//! node has promised since. Consensus takes for granted that a member remembers every vote it gave
//! and every entry it acknowledged; one that does not may help to elect a leader without entries
//! that were acknowledged. So each directory has an incarnation, drawn when it is made, and counts
//! the processes that were started over it; each process draws a nonce. All of it, with how far
//! the directory had come at that start, stands on every call and every answer between
//! coordinators ([`MEMBER`]), and every call names the incarnation that it expects ([`EXPECTS`]).
//! What follows from an identity is decided in [`crate::witness`].

use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use tonic::metadata::MetadataMap;
#[cfg(test)]
use tonic::metadata::MetadataValue;
use volley_types::{ErrorCode, PredictError};

use crate::raft_types::Vote;

/// The sender's identity.
const MEMBER: &str = "volley-member";
/// Whom the sender means to call.
const EXPECTS: &str = "volley-expects";

/// What is drawn by chance when a process starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Draw {
    /// Of the directory, where that is new.
    pub(crate) incarnation: u64,
    /// Of the process.
    pub(crate) nonce: u64,
    /// Of the cluster, should this node found one.
    pub(crate) cluster: u64,
}

impl Draw {
    /// # Errors
    /// `Internal` when the operating system returned no random bytes.
    pub(crate) fn random() -> Result<Self, PredictError> {
        Ok(Self {
            incarnation: new_mark()?,
            nonce: new_mark()?,
            cluster: new_mark()?,
        })
    }
}

/// A random number that is not 0, which stands for nothing.
///
/// # Errors
/// `Internal` when the operating system returned no random bytes.
pub(crate) fn new_mark() -> Result<u64, PredictError> {
    let mut bytes = [0; 8];
    SystemRandom::new().fill(&mut bytes).map_err(|_| {
        PredictError::new(
            ErrorCode::Internal,
            "the operating system returned no random bytes",
        )
    })?;
    Ok(u64::from_le_bytes(bytes).max(1))
}

/// A vote in the order in which one member gives them: it never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Ballot {
    /// The term.
    pub(crate) term: u64,
    /// For whom.
    pub(crate) leader: u64,
    /// Whether that one was elected, as far as the voter knew.
    pub(crate) elected: bool,
}

impl Ballot {
    pub(crate) fn of(vote: Vote) -> Self {
        Self {
            term: vote.leader_id.term,
            leader: vote.leader_id.node_id,
            elected: vote.committed,
        }
    }
}

/// Who sends a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The member's id.
    pub(crate) node: u64,
    /// Of its data directory.
    pub(crate) incarnation: u64,
    /// How many processes were started over the directory, with this one.
    pub(crate) start: u64,
    /// Of this process.
    pub(crate) nonce: u64,
    /// The vote that the directory had when the process started.
    pub(crate) vote: Ballot,
    /// The end of its log then.
    pub(crate) last: u64,
}

impl Identity {
    /// Puts it on a message.
    pub(crate) fn mark(&self, metadata: &mut MetadataMap) {
        let Ballot {
            term,
            leader,
            elected,
        } = self.vote;
        let text = format!(
            "{}.{}.{}.{}.{term}.{leader}.{}.{}",
            self.node,
            self.incarnation,
            self.start,
            self.nonce,
            u8::from(elected),
            self.last
        );
        if let Ok(value) = text.parse() {
            metadata.insert(MEMBER, value);
        }
    }

    /// The sender of a message. `Ok(None)` where it does not say, as before level 6.
    ///
    /// # Errors
    /// When it is malformed.
    pub(crate) fn read(metadata: &MetadataMap) -> Result<Option<Self>, MalformedIdentity> {
        let Some(value) = metadata.get(MEMBER) else {
            return Ok(None);
        };
        let text = value.to_str().map_err(|_| MalformedIdentity)?;
        let mut numbers = [0_u64; 8];
        let mut parts = text.split('.');
        for number in &mut numbers {
            let part = parts.next().ok_or(MalformedIdentity)?;
            *number = part.parse().map_err(|_| MalformedIdentity)?;
        }
        if parts.next().is_some() || 1 < numbers[6] {
            return Err(MalformedIdentity);
        }
        let [node, incarnation, start, nonce, term, leader, elected, last] = numbers;
        Ok(Some(Self {
            node,
            incarnation,
            start,
            nonce,
            vote: Ballot {
                term,
                leader,
                elected: elected == 1,
            },
            last,
        }))
    }

    /// Whether `other` is the same process.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let process = |it: &Self| (it.node, it.incarnation, it.start, it.nonce);
        process(self) == process(other)
    }
}

/// An identity that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedIdentity;

/// Whom the sender of a message means to call: several ids may have had one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpectedNode {
    /// The member's id.
    pub(crate) node: u64,
    /// Of its data directory, as the sender knows it.
    pub(crate) incarnation: Option<u64>,
    /// The highest id among the members: one that was lost does not know which are used up.
    pub(crate) highest: u64,
}

impl ExpectedNode {
    /// Puts it on a message.
    pub(crate) fn mark(&self, metadata: &mut MetadataMap) {
        let incarnation = self.incarnation.unwrap_or_default();
        let text = format!("{}.{incarnation}.{}", self.node, self.highest);
        if let Ok(value) = text.parse() {
            metadata.insert(EXPECTS, value);
        }
    }

    /// Whom a message means; `Ok(None)` where it does not say.
    ///
    /// # Errors
    /// When it is malformed.
    pub(crate) fn read(metadata: &MetadataMap) -> Result<Option<Self>, MalformedIdentity> {
        let Some(value) = metadata.get(EXPECTS) else {
            return Ok(None);
        };
        let text = value.to_str().map_err(|_| MalformedIdentity)?;
        let numbers = text
            .split('.')
            .map(|part| part.parse().map_err(|_| MalformedIdentity));
        let numbers: Vec<u64> = numbers.collect::<Result<_, _>>()?;
        let [node, incarnation, highest] = numbers[..] else {
            return Err(MalformedIdentity);
        };
        Ok(Some(Self {
            node,
            incarnation: (incarnation != 0).then_some(incarnation),
            highest,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_travels_and_a_malformed_one_is_none() {
        let identity = Identity {
            node: 3,
            incarnation: u64::MAX,
            start: 7,
            nonce: 1,
            vote: Ballot {
                term: 12,
                leader: 2,
                elected: true,
            },
            last: 480,
        };
        let mut metadata = MetadataMap::new();
        assert_eq!(Identity::read(&metadata), Ok(None));
        identity.mark(&mut metadata);
        assert_eq!(Identity::read(&metadata), Ok(Some(identity)));
        for text in [
            "1.2.3",
            "1.2.3.4.5.6.2.8",
            "1.2.3.4.5.6.1.8.9",
            "x.2.3.4.5.6.1.8",
        ] {
            metadata.insert(MEMBER, MetadataValue::from_static(text));
            assert_eq!(Identity::read(&metadata), Err(MalformedIdentity), "{text}");
        }
        assert_eq!(ExpectedNode::read(&metadata), Ok(None));
        for incarnation in [None, Some(9)] {
            let expected = ExpectedNode {
                node: 4,
                incarnation,
                highest: 7,
            };
            expected.mark(&mut metadata);
            assert_eq!(ExpectedNode::read(&metadata), Ok(Some(expected)));
        }
        metadata.insert(EXPECTS, MetadataValue::from_static("9"));
        assert_eq!(ExpectedNode::read(&metadata), Err(MalformedIdentity));
    }

    #[test]
    fn ballots_have_the_order_in_which_a_member_gives_them() {
        let ballot = |term, leader, elected| Ballot {
            term,
            leader,
            elected,
        };
        let order = [
            ballot(0, 0, false),
            ballot(1, 1, false),
            ballot(1, 1, true),
            ballot(1, 2, false),
            ballot(2, 1, false),
        ];
        assert!(order.is_sorted());
    }
}
