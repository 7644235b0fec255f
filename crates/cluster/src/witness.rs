//! What a coordinator knows of the others' disks, and whether one that comes may be what its id
//! says.
//!
//! For each member there is a record: the incarnation of its directory, the latest process over it
//! that was admitted, the highest vote and the highest committed index that it has shown. An
//! honest member goes back behind none of them, whatever crashes: its vote and its log were on
//! disk before it showed anything. A leader also knows up to where each follower has acknowledged
//! its log. So a process that is new here is refused
//!
//! | where | as | because |
//! |---|---|---|
//! | its directory has another incarnation than the membership or the record has | [`Refusal::Lost`] | the disk was lost or replaced |
//! | the process of the record is another one and still answers | [`Refusal::Copy`] | it was started over a copy |
//! | the record has a later start, or another process of the same start | [`Refusal::Stale`] | an older copy was put back |
//! | its vote or its log had, when it started, less than the record | [`Refusal::Stale`] | the same, or the log was cut |
//!
//! Records go to disk with whatever is written next, and are as new as the last question (a second)
//! or message. A loss of which no coordinator that can be reached has a record is not found.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::identity::{Ballot, Identity};

/// What is known of one member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Of its directory.
    pub(crate) incarnation: u64,
    /// The latest process that was admitted.
    start: u64,
    nonce: u64,
    /// The highest vote that it has shown.
    vote: Ballot,
    /// The highest index that it knew to be committed, and so had in its log.
    committed: u64,
    /// It has been in the membership; its id is used up once it is not.
    #[serde(default)]
    pub(crate) was_member: bool,
}

/// Records of other members, by id.
pub(crate) type Records = BTreeMap<u64, Record>;

/// Why a process is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Its directory is not the member's.
    Lost,
    /// Its directory is an older state of the member's.
    Stale,
    /// Another process runs over the same directory, or a copy of it.
    Copy,
}

impl Refusal {
    const ALL: [Self; 3] = [Self::Lost, Self::Stale, Self::Copy];

    /// Its name between coordinators.
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

/// What is to be done with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Its sender is the process of the record.
    Known,
    /// Its sender may be admitted.
    New,
    /// Its sender may be admitted unless the process of the record still runs.
    NewUnless(Record),
    /// It is not taken; the process of the record, where it runs, is why.
    Older(Record),
    /// It is not taken.
    Refused(Refusal),
}

/// Judges the sender of a message by its `record`, by the incarnation that the membership has for
/// it, and, on a leader, by the vote and index up to which it has `acknowledged` the log.
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
            // What the cluster has agreed on goes before what was first heard here.
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
    /// What is known once `sender` was admitted, of which there was `before`.
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

    /// Whether it is of this process.
    pub(crate) fn is_of(&self, process: &Identity) -> bool {
        (self.incarnation, self.start, self.nonce)
            == (process.incarnation, process.start, process.nonce)
    }

    /// Takes over what the member shows of itself now. Whether that is more than before.
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
        // Entries that were never committed may be cut off.
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
        // The membership knows better than who first called here.
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
        // What it acknowledged to this leader, it has.
        let acknowledged = Some((ballot(5), 44));
        assert_eq!(refused(process(4, 31, 5, 43), acknowledged), stale);
        let whole = refused(process(4, 31, 5, 44), acknowledged);
        assert_eq!(whole, Verdict::NewUnless(record));
        // A later leader may have cut it off.
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
