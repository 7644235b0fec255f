//! Evidence about other members' disks, and the decision whether a process may use its id.
//!
//! There is a record for each member: the incarnation of its directory, the last admitted process,
//! and the highest vote and committed index that it has shown. An honest member never falls behind
//! its record, even in a crash, because it shows nothing before its vote and its log are on disk. A
//! leader also knows up to where each follower has acknowledged its log. A process that is new here
//! is rejected in these cases:
//!
//! | case | refusal | reason |
//! |---|---|---|
//! | Its directory has another incarnation than the membership or the record. | [`Refusal::Lost`] | The disk was lost or replaced. |
//! | The process of the record is another one and still answers. | [`Refusal::Copy`] | It was started over a copy. |
//! | The record has a later start, or another process of the same start. | [`Refusal::Stale`] | An older copy was restored. |
//! | Its vote or log, at its start, was behind the record. | [`Refusal::Stale`] | An older copy was restored, or the log was truncated. |
//!
//! Records are written to disk with the next write. They are as recent as the last description (one
//! second) or message. A loss goes unnoticed if no reachable coordinator has a record of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::identity::{Ballot, Identity};

/// Evidence about one member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Incarnation of its directory.
    pub(crate) incarnation: u64,
    /// Start and nonce of the last admitted process.
    start: u64,
    nonce: u64,
    /// Highest vote that it has shown.
    vote: Ballot,
    /// Highest index that it knew to be committed, and therefore had in its log.
    committed: u64,
    /// It has been in the membership. Its id is used up once it is removed.
    #[serde(default)]
    pub(crate) was_member: bool,
}

/// Records of other members, by id.
pub(crate) type Records = BTreeMap<u64, Record>;

/// Reason for rejecting a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Its directory is not that of the member.
    Lost,
    /// Its directory is an older state of the member's.
    Stale,
    /// Another process runs over the same directory, or over a copy of it.
    Copy,
}

impl Refusal {
    const ALL: [Self; 3] = [Self::Lost, Self::Stale, Self::Copy];

    /// Name in messages between coordinators.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Stale => "stale",
            Self::Copy => "copy",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|refusal| refusal.name() == name)
    }
}

/// Decision about the sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is the process of the record.
    Known,
    /// It may be admitted.
    New,
    /// It may be admitted unless the process of the record still runs.
    NewUnless(Record),
    /// It is rejected: as a copy if the process of the record still runs, otherwise as stale.
    Older(Record),
    /// It is rejected.
    Refused(Refusal),
}

/// Judges the sender of a message by its `record` and by the incarnation in the membership
/// (`member`). On a leader, `acknowledged` is the vote and index up to which the sender has
/// acknowledged the log.
pub(crate) fn judge(
    sender: &Identity,
    member: Option<u64>,
    record: Option<&Record>,
    acknowledged: Option<(Ballot, u64)>,
) -> Verdict {
    if member.is_some_and(|member| member != sender.incarnation) {
        return Verdict::Refused(Refusal::Lost);
    }
    let Some(record) = record else {
        return Verdict::New;
    };
    if record.incarnation != sender.incarnation {
        return match member {
            // The agreed membership outranks what this node heard first.
            Some(_) => Verdict::New,
            None => Verdict::Refused(Refusal::Lost),
        };
    }
    if record.is_of(sender) {
        return Verdict::Known;
    }
    if sender.start <= record.start {
        return Verdict::Older(*record);
    }
    let lacks_acknowledged = acknowledged.is_some_and(|(vote, index)| {
        sender.vote < vote || (sender.vote == vote && sender.last < index)
    });
    let is_behind =
        sender.vote < record.vote || sender.last < record.committed || lacks_acknowledged;
    match is_behind {
        true => Verdict::Refused(Refusal::Stale),
        false => Verdict::NewUnless(*record),
    }
}

impl Record {
    /// Returns the record after `sender` was admitted. `before` is the previous record.
    pub(crate) fn admitted(sender: &Identity, before: Option<&Self>) -> Self {
        let same = before.filter(|before| before.incarnation == sender.incarnation);
        let before = same.copied().unwrap_or_default();
        Self {
            incarnation: sender.incarnation,
            start: sender.start,
            nonce: sender.nonce,
            vote: before.vote.max(sender.vote),
            committed: before.committed,
            was_member: before.was_member,
        }
    }

    /// Returns whether the record is of this process.
    pub(crate) fn is_of(&self, process: &Identity) -> bool {
        (self.incarnation, self.start, self.nonce)
            == (process.incarnation, process.start, process.nonce)
    }

    /// Raises the record to what the member shows now, and returns whether it changed.
    pub(crate) fn raise(&mut self, vote: Ballot, committed: u64) -> bool {
        let before = *self;
        self.vote = self.vote.max(vote);
        self.committed = self.committed.max(committed);
        before != *self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ballot(term: u64) -> Ballot {
        Ballot {
            term,
            leader: 1,
            elected: true,
        }
    }

    fn process(start: u64, nonce: u64, term: u64, last: u64) -> Identity {
        Identity {
            node: 2,
            incarnation: 77,
            start,
            nonce,
            vote: ballot(term),
            last,
        }
    }

    /// The record of a third process, which had voted in term 5 and knew 40 entries to be
    /// committed.
    fn record() -> Record {
        let mut record = Record::admitted(&process(3, 30, 4, 20), None);
        assert!(record.raise(ballot(5), 40) && !record.raise(ballot(4), 30));
        record
    }

    #[test]
    fn the_same_process_is_known_and_its_next_life_is_new() {
        let record = record();
        let same = process(3, 30, 4, 20);
        assert_eq!(judge(&same, Some(77), Some(&record), None), Verdict::Known);
        let next = process(4, 31, 5, 40);
        let verdict = judge(&next, Some(77), Some(&record), None);
        assert_eq!(verdict, Verdict::NewUnless(record));
        assert_eq!(judge(&next, None, None, None), Verdict::New);
        // Entries that were never committed may have been truncated.
        let verdict = judge(&process(9, 1, 6, 41), None, Some(&record), None);
        assert_eq!(verdict, Verdict::NewUnless(record));
    }

    #[test]
    fn another_directory_is_refused_whatever_is_in_it() {
        let other = Identity {
            incarnation: 78,
            ..process(9, 1, 9, 90)
        };
        let lost = Verdict::Refused(Refusal::Lost);
        assert_eq!(judge(&other, Some(77), None, None), lost);
        assert_eq!(judge(&other, None, Some(&record()), None), lost);
        // The membership outranks the first caller.
        assert_eq!(judge(&other, Some(78), Some(&record()), None), Verdict::New);
    }

    #[test]
    fn a_copy_and_an_older_state_are_refused() {
        let record = record();
        let refused = |sender, acknowledged| judge(&sender, Some(77), Some(&record), acknowledged);
        let (older, stale) = (Verdict::Older(record), Verdict::Refused(Refusal::Stale));
        assert_eq!(refused(process(3, 31, 5, 40), None), older);
        assert_eq!(refused(process(2, 20, 5, 40), None), older);
        assert_eq!(refused(process(4, 31, 4, 40), None), stale, "an older vote");
        assert_eq!(refused(process(4, 31, 5, 39), None), stale, "a shorter log");
        // It has the entries that it acknowledged to this leader.
        let acknowledged = Some((ballot(5), 44));
        assert_eq!(refused(process(4, 31, 5, 43), acknowledged), stale);
        let whole = refused(process(4, 31, 5, 44), acknowledged);
        assert_eq!(whole, Verdict::NewUnless(record));
        // A later leader may have truncated it.
        let whole = refused(process(4, 31, 6, 41), acknowledged);
        assert_eq!(whole, Verdict::NewUnless(record));
    }

    #[test]
    fn refusals_have_names() {
        for refusal in Refusal::ALL {
            assert_eq!(Refusal::from_name(refusal.name()), Some(refusal));
        }
        assert_eq!(Refusal::from_name("other"), None);
    }
}
