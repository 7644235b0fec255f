//! Decides which voter stands for election after the leader falls silent, and when: the voter that
//! can win, as soon as the others are free to vote.
//!
//! The consensus library lets every voter stand after a random time, whatever its log. A voter with
//! missing log entries cannot win. But it raises the term, so the voter that can win loses its turn
//! as well, and two such turns take five seconds. Therefore a voter that has received nothing for
//! the length of the lease first sends pre-votes to all others. Their replies state when they are
//! free to vote, whether they may lead, and where their logs end. Of the voters that answer, the
//! one with the longest log stands immediately; of equals, the one with the highest id. More than
//! half must answer, and one voter that still hears the leader is enough to wait.
//!
//! Only the moment of an election is decided here. The library's own timers stay active for
//! clusters in which the pre-vote finds no candidate, and only the library counts votes.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use openraft::{CommittedLeaderId, ServerState};
use std::sync::atomic::Ordering;
use tokio::time::Instant;
use tonic::Request;
use volley_proto::raft::v1 as wire;
use volley_proto::raft::v1::raft_service_client::RaftServiceClient;
use volley_types::NodeId;
use volley_types::registry::CoordinatorMember;

use crate::Cluster;
use crate::config::MAX_RAFT_MULTIPLIER;
use crate::lines::MAX_MESSAGE_BYTES;
use crate::raft_types::LogId;

/// Added to the lease, for the resolution of clocks.
const MARGIN: Duration = Duration::from_millis(20);
/// Upper limit of a bound that a peer reports. A voter is bound for its own lease at most, and
/// leases may differ by this factor while the timing is changed.
const LONGEST_LEASE: Duration = Duration::from_secs(MAX_RAFT_MULTIPLIER as u64);

/// Reply to a pre-vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidacy {
    /// Remaining time in which this voter votes for nobody.
    bound: Duration,
    /// This voter may become the leader.
    willing: bool,
    /// Last entry of its log.
    last: Option<LogId>,
}

/// Decision after a pre-vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Stand,
    Wait(Duration),
}

impl Cluster {
    /// Stands for election whenever this node is the best candidate, until the node stops.
    pub(crate) async fn watch_the_leader(self) {
        let watching = async {
            loop {
                let wait = match self.look_at_the_leader().await {
                    Next::Stand => {
                        if self.0.raft.trigger().elect().await.is_err() {
                            return;
                        }
                        self.0.config.timing.candidacy()
                    }
                    Next::Wait(wait) => wait,
                };
                tokio::time::sleep(wait).await;
            }
        };
        tokio::select! {
            () = self.0.stop.cancelled() => {}
            () = watching => {}
        }
    }

    async fn look_at_the_leader(&self) -> Next {
        let own = self.0.config.node_id;
        let members = crate::members(&self.0.raft.metrics().borrow());
        let voters: Vec<_> = members.into_iter().filter(|member| member.voter).collect();
        let votes = voters.iter().any(|member| member.id == own);
        // A single voter needs no pre-vote; its own timer elects it.
        if !votes || voters.len() == 1 || self.is_leader() {
            return Next::Wait(self.lease());
        }
        let Some(candidacy) = self.candidacy().await else {
            return Next::Wait(self.lease());
        };
        if !candidacy.bound.is_zero() {
            return Next::Wait(candidacy.bound + MARGIN);
        }
        let others = voters.iter().filter(|member| member.id != own);
        let patience = self.0.config.timing.pre_vote();
        let asked: FuturesUnordered<_> = others
            .map(|member| async {
                let asked = tokio::time::timeout(patience, self.pre_vote(member)).await;
                asked.ok().flatten().map(|candidacy| (member.id, candidacy))
            })
            .collect();
        let answers: Vec<_> = asked.filter_map(std::future::ready).collect().await;
        let again = self.0.config.timing.recess();
        decide((own, candidacy), &answers, voters.len(), again)
    }

    pub(crate) fn lease(&self) -> Duration {
        self.0.config.timing.lease()
    }

    /// Returns this node's reply to a pre-vote; `None` after it has stopped.
    pub(crate) async fn candidacy(&self) -> Option<Candidacy> {
        let seen = self.0.raft.with_raft_state(|state| {
            let heard = state.vote_last_modified();
            (state.server_state, state.vote_ref().committed, heard)
        });
        let (role, follows, heard) = seen.await.ok()?;
        let bound = match role {
            ServerState::Leader => self.leads_for(),
            _ => {
                let silent = heard.map_or(Duration::MAX, |heard| {
                    Instant::now().saturating_duration_since(heard)
                });
                let timing = &self.0.config.timing;
                let bound = match follows {
                    true => timing.lease(),
                    false => timing.candidacy(),
                };
                bound.saturating_sub(silent)
            }
        };
        let drained = self.0.registry.borrow();
        let drained = drained.drains_coordinator(self.0.config.node_id);
        Some(Candidacy {
            bound,
            willing: !drained && !self.0.retiring.load(Ordering::Acquire),
            last: self.0.log.last_id(),
        })
    }

    /// Returns how long a leader keeps the other voters from standing: zero if it has not heard
    /// from a majority for the length of its lease.
    fn leads_for(&self) -> Duration {
        let heard = self.0.raft.metrics().borrow().millis_since_quorum_ack;
        let silent = heard.map_or(Duration::MAX, Duration::from_millis);
        match silent < self.lease() || self.0.handing_over.load(Ordering::Acquire) {
            true => self.lease(),
            false => Duration::ZERO,
        }
    }

    /// Sends a pre-vote to one voter; `None` if it does not answer.
    async fn pre_vote(&self, member: &CoordinatorMember) -> Option<Candidacy> {
        let address = member.address.as_str();
        let line = self.peer(address).await?;
        let mut client = RaftServiceClient::new(line).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let mut request = Request::new(wire::PreVoteRequest {});
        self.0.epoch.mark(request.metadata_mut());
        let admission = &self.0.identity;
        admission.address(member.id.0, request.metadata_mut());
        match client.pre_vote(request).await {
            Ok(reply) => {
                let checked = admission.check_answer(member.id.0, reply.metadata());
                checked.await.ok()?;
                Some(Candidacy::from_wire(reply.into_inner()))
            }
            Err(status) => {
                admission.heed(&status);
                tracing::debug!(address, reason = status.message(), "pre-vote failed");
                self.0.peers.lock().await.remove(address);
                None
            }
        }
    }
}

impl Candidacy {
    pub(crate) fn to_wire(self) -> wire::PreVoteReply {
        wire::PreVoteReply {
            // Rounded up: a candidate must not be too early.
            bound_ms: u64::try_from(self.bound.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX),
            willing: self.willing,
            last: self.last.map(|last| wire::LogPosition {
                term: last.leader_id.term,
                leader: last.leader_id.node_id,
                index: last.index,
            }),
        }
    }

    fn from_wire(reply: wire::PreVoteReply) -> Self {
        let position = |last: wire::LogPosition| {
            LogId::new(CommittedLeaderId::new(last.term, last.leader), last.index)
        };
        Self {
            bound: Duration::from_millis(reply.bound_ms),
            willing: reply.willing,
            last: reply.last.map(position),
        }
    }
}

/// Decides by the candidacies of this node (`own`) and of the voters that answered. `voters`
/// includes this node. `again` is the delay before the next pre-vote if no candidate can win.
fn decide(
    own: (NodeId, Candidacy),
    others: &[(NodeId, Candidacy)],
    voters: usize,
    again: Duration,
) -> Next {
    let (id, candidacy) = own;
    if 2 * (1 + others.len()) <= voters {
        return Next::Wait(again);
    }
    let bound = others.iter().map(|(_, theirs)| theirs.bound);
    let bound = bound.fold(candidacy.bound, Duration::max);
    if !bound.is_zero() {
        return Next::Wait(bound.min(LONGEST_LEASE) + MARGIN);
    }
    let goes_before = |other: &NodeId, theirs: &Candidacy| {
        candidacy.last < theirs.last
            || (candidacy.last == theirs.last && theirs.willing && id < *other)
    };
    let is_behind = others
        .iter()
        .any(|(other, theirs)| goes_before(other, theirs));
    match candidacy.willing && !is_behind {
        true => Next::Stand,
        false => Next::Wait(again),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGAIN: Duration = Duration::from_millis(150);

    fn free(term: u64, index: u64) -> Candidacy {
        Candidacy {
            bound: Duration::ZERO,
            willing: true,
            last: Some(LogId::new(CommittedLeaderId::new(term, 1), index)),
        }
    }

    fn stands(own: (u64, Candidacy), others: &[(u64, Candidacy)], voters: usize) -> bool {
        let others: Vec<_> = others.iter().map(|(id, it)| (NodeId(*id), *it)).collect();
        decide((NodeId(own.0), own.1), &others, voters, AGAIN) == Next::Stand
    }

    #[test]
    fn the_longest_log_stands_and_between_equals_the_higher_id() {
        assert!(stands((1, free(2, 9)), &[(2, free(2, 8))], 3));
        assert!(!stands((2, free(2, 8)), &[(1, free(2, 9))], 3));
        // A later term outranks a longer log.
        assert!(stands((1, free(3, 2)), &[(2, free(2, 9))], 3));
        assert!(stands((2, free(2, 9)), &[(1, free(2, 9))], 3));
        assert!(!stands((1, free(2, 9)), &[(2, free(2, 9))], 3));
        let empty = Candidacy {
            last: None,
            ..free(0, 0)
        };
        assert!(!stands((3, empty), &[(1, free(0, 0))], 3));
    }

    #[test]
    fn nobody_stands_whom_too_few_answer_or_while_one_hears_the_leader() {
        assert!(!stands((3, free(2, 9)), &[], 3));
        assert!(!stands((5, free(2, 9)), &[(1, free(2, 9))], 5));
        let hears = Candidacy {
            bound: Duration::from_millis(400),
            ..free(2, 9)
        };
        let others = [(NodeId(1), free(2, 9)), (NodeId(2), hears)];
        let next = decide((NodeId(3), free(2, 9)), &others, 5, AGAIN);
        assert_eq!(next, Next::Wait(Duration::from_millis(400) + MARGIN));
    }

    #[test]
    fn who_does_not_lead_leaves_it_to_an_equal_and_is_not_passed_by_a_shorter_log() {
        let drained = Candidacy {
            willing: false,
            ..free(2, 9)
        };
        assert!(!stands((3, drained), &[(1, free(2, 9))], 3));
        assert!(stands((1, free(2, 9)), &[(3, drained)], 3));
        // Only the drained voter could win, so its own timer decides.
        assert!(!stands((1, free(2, 8)), &[(3, drained)], 3));
    }

    #[test]
    fn what_is_said_over_the_wire_is_what_is_heard() {
        let said = [
            free(7, 12),
            Candidacy {
                bound: Duration::from_millis(620),
                willing: false,
                last: None,
            },
        ];
        for candidacy in said {
            assert_eq!(Candidacy::from_wire(candidacy.to_wire()), candidacy);
        }
        let rounded = Candidacy {
            bound: Duration::from_micros(1),
            ..free(1, 1)
        };
        assert_eq!(rounded.to_wire().bound_ms, 1);
    }
}
