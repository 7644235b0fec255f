//! Identity of a coordinator: its id, the incarnation of its data directory, and the process that
//! runs over that directory.
//!
//! An id alone proves nothing. A node that lost its disk still has the id in its configuration. So
//! does a second process over a copy of the directory, or a process over an older copy. Consensus
//! assumes that a member remembers every vote that it gave and every entry that it acknowledged. A
//! member that does not may help to elect a leader without acknowledged entries.
//!
//! So each directory has an incarnation, drawn when it is created, and counts the processes that
//! were started over it. Each process draws a nonce. All calls and replies between coordinators
//! carry these ([`MEMBER`]), with the state of the directory at the start of the process. Every
//! call also names the incarnation that it expects ([`EXPECTS`]). [`crate::witness`] decides what
//! follows from an identity.

use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use tonic::metadata::MetadataMap;
#[cfg(test)]
use tonic::metadata::MetadataValue;
use volley_types::{ErrorCode, PredictError};

use crate::raft_types::Vote;

/// Metadata key of the sender's identity.
const MEMBER: &str = "volley-member";
/// Metadata key of the expected receiver.
const EXPECTS: &str = "volley-expects";

/// Random numbers that are drawn when a process starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Draw {
    /// Incarnation of the directory, used if it is new.
    pub(crate) incarnation: u64,
    /// Nonce of the process.
    pub(crate) nonce: u64,
    /// Epoch of the cluster, used if this node founds one.
    pub(crate) cluster: u64,
}

impl Draw {
    /// Draws the numbers.
    ///
    /// # Errors
    /// `Internal` if the operating system returns no random bytes.
    pub(crate) fn random() -> Result<Self, PredictError> {
        Ok(Self {
            incarnation: new_mark()?,
            nonce: new_mark()?,
            cluster: new_mark()?,
        })
    }
}

/// Returns a random number other than 0, which means "none".
///
/// # Errors
/// `Internal` if the operating system returns no random bytes.
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

/// A vote. The order is that in which one member gives votes: it never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Ballot {
    /// Raft term of the vote.
    pub(crate) term: u64,
    /// Id of the node that was voted for.
    pub(crate) leader: u64,
    /// Whether that node was elected, as far as the voter knew.
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

/// Sender of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Id of the member.
    pub(crate) node: u64,
    /// Incarnation of its data directory.
    pub(crate) incarnation: u64,
    /// Number of processes that were started over the directory, including this one.
    pub(crate) start: u64,
    /// Nonce of the process.
    pub(crate) nonce: u64,
    /// Vote in the directory when the process started.
    pub(crate) vote: Ballot,
    /// Last log index when the process started.
    pub(crate) last: u64,
}

impl Identity {
    /// Adds the identity to a message.
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

    /// Reads the identity of the sender of a message; `None` if there is none, as before level 6.
    ///
    /// # Errors
    /// [`MalformedIdentity`] if it cannot be parsed.
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

    /// Returns whether `other` is the same process.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let process = |it: &Self| (it.node, it.incarnation, it.start, it.nonce);
        process(self) == process(other)
    }
}

/// An identity that cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedIdentity;

/// The receiver that the sender of a message expects: several ids may have used one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpectedNode {
    /// Id of the member.
    pub(crate) node: u64,
    /// Incarnation of its data directory, if the sender knows it.
    pub(crate) incarnation: Option<u64>,
    /// Highest id among the members: a node that lost its data does not know which ids are used up.
    pub(crate) highest: u64,
}

impl ExpectedNode {
    /// Adds the expected receiver to a message.
    pub(crate) fn mark(&self, metadata: &mut MetadataMap) {
        let incarnation = self.incarnation.unwrap_or_default();
        let text = format!("{}.{incarnation}.{}", self.node, self.highest);
        if let Ok(value) = text.parse() {
            metadata.insert(EXPECTS, value);
        }
    }

    /// Reads the expected receiver of a message; `None` if there is none.
    ///
    /// # Errors
    /// [`MalformedIdentity`] if it cannot be parsed.
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
