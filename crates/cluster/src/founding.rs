//! How a cluster starts, and how a node with an empty directory finds out that it must not found
//! one.
//!
//! A directory without a vote and without a log belongs either to a node of a new cluster, or to a
//! node that lost its disk. The node's own configuration cannot distinguish the two:
//! `[cluster.bootstrap]` is the same. The other nodes can. So each node that is named there asks
//! all the others:
//!
//! | reply of the others | consequence |
//! |---|---|
//! | One has a membership with this node and this directory's incarnation. | The cluster was founded with this node, which waits for a call. |
//! | One has a membership with this node and another incarnation, or none. | The disk was lost: this node ends, and names the command that replaces it. |
//! | One has a membership without this node. | This node does not found another cluster. It may join under an unused id. |
//! | One does not answer, or has voted and knows no members yet. | Nothing is known: this node asks again. |
//! | All are empty as well. | The one with the lowest id founds the cluster, with the incarnations of the replies. |
//!
//! All nodes must answer, not only a majority. Of three members two may have lost their disks while
//! the third has acknowledged writes: a cluster of the two would end it. Only the lowest id founds,
//! so there is one first entry and one cluster epoch, even if founding is interrupted and repeated.
//! A waiting node neither votes nor founds. Once the cluster is founded, a majority of its members
//! is enough.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use openraft::error::{InitializeError, RaftError};
use tokio::time::Instant;
use volley_types::{ErrorCode, NodeId, PredictError};

use crate::Cluster;
use crate::admission::reason;
use crate::describe::CoordinatorDescription;
use crate::raft_types::MemberNode;
use crate::witness::Refusal;

/// Intervals of the requests, first while the node is new and later.
const ASK_FIRST: Duration = Duration::from_millis(100);
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Timeout of each request. It is long, because this node can do nothing else meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time after the start for which a node counts as new.
const YOUNG: Duration = Duration::from_secs(10);
/// Interval of the warning that names the missing coordinators.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// A configured member and its reply.
type Answer = (NodeId, Option<CoordinatorDescription>);

/// Decision after all replies.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// Found the cluster with the incarnations of the other members.
    Found(BTreeMap<NodeId, u64>),
    /// Ask again, for this reason.
    Wait(String),
    /// This node's data were lost. Contains the highest known id.
    Lost(u64),
    /// A cluster without this node exists. Contains the highest known id.
    Stranger(u64),
}

impl Cluster {
    /// Founds the cluster with `members` (ids and addresses, `host:port`), or waits until another
    /// of them has. Every member may call this function, with the same members. A node that already
    /// has a membership returns immediately. The function repeats its requests until all other
    /// members have answered.
    ///
    /// Cancel safe: dropping the future stops the requests.
    ///
    /// # Errors
    /// `InvalidInput` if this node is not among the members; `Conflict` if there is already a
    /// cluster to which this node's data do not belong, and then the node has also
    /// [failed](Cluster::failure); `Internal` if the first membership cannot be written.
    pub fn bootstrap(
        &self,
        members: BTreeMap<NodeId, String>,
    ) -> BoxFuture<'_, Result<(), PredictError>> {
        Box::pin(self.form(members))
    }

    async fn form(&self, members: BTreeMap<NodeId, String>) -> Result<(), PredictError> {
        let own = self.0.config.node_id;
        if !members.contains_key(&own) {
            return Err(PredictError::invalid(format!(
                "coordinator {own} is missing in 'cluster.bootstrap'; add it there, or use \
                 'cluster.join'"
            )));
        }
        let (began, mut told) = (Instant::now(), None);
        loop {
            if self.is_initialised().await {
                return Ok(());
            }
            if let Some(failure) = self.failure().borrow().clone() {
                return Err(PredictError::new(ErrorCode::Conflict, failure.to_string()));
            }
            let answers = self.ask_named(&members).await;
            match decide(own, self.0.identity.own().incarnation, &answers) {
                Step::Found(incarnations) => return self.found(&members, &incarnations).await,
                Step::Lost(highest) => return Err(self.lost(highest)),
                Step::Stranger(highest) => return Err(self.stranger(highest)),
                Step::Wait(why) => {
                    let is_due = told.is_none_or(|told: Instant| TELL_EVERY < told.elapsed());
                    if is_due && ASK_EVERY < began.elapsed() {
                        told = Some(Instant::now());
                        tracing::warn!(
                            reason = why,
                            "bootstrap is waiting until every member of 'cluster.bootstrap' \
                             reports an empty data directory"
                        );
                    }
                }
            }
            let wait = match began.elapsed() < YOUNG {
                true => ASK_FIRST,
                false => ASK_EVERY,
            };
            tokio::time::sleep(wait).await;
        }
    }

    async fn ask_named(&self, members: &BTreeMap<NodeId, String>) -> Vec<Answer> {
        let own = self.0.config.node_id;
        let others = members.iter().filter(|(id, _)| **id != own);
        let asked = others.map(|(id, address)| async move {
            let described = self.ask_within(PATIENCE, address, None).await;
            (*id, described.ok())
        });
        join_all(asked).await
    }

    async fn found(
        &self,
        members: &BTreeMap<NodeId, String>,
        incarnations: &BTreeMap<NodeId, u64>,
    ) -> Result<(), PredictError> {
        if self.0.epoch.get() == 0 {
            let kept = self.adopt(self.0.mark).await;
            kept.map_err(|error| {
                PredictError::internal("the cluster was not bootstrapped", error)
            })?;
        }
        let own = self.0.identity.own();
        let nodes: BTreeMap<u64, MemberNode> = members
            .iter()
            .map(|(id, address)| {
                let incarnation = match id.0 == own.node {
                    true => own.incarnation,
                    false => incarnations.get(id).copied().unwrap_or_default(),
                };
                let addr = address.clone();
                (id.0, MemberNode { addr, incarnation })
            })
            .collect();
        match self.0.raft.initialize(nodes).await {
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(error) => Err(PredictError::internal(
                "the cluster was not bootstrapped",
                error,
            )),
        }
    }

    /// Checks that the membership of the coordinator at `seed` does not have this node with another
    /// incarnation. A node with data, and a seed that does not answer, pass.
    ///
    /// # Errors
    /// `Conflict` if it does.
    pub(crate) async fn check_not_lost(&self, seed: &str) -> Result<(), PredictError> {
        if self.is_initialised().await {
            return Ok(());
        }
        let Ok(described) = self.ask_within(PATIENCE, seed, None).await else {
            return Ok(());
        };
        let own = self.0.identity.own();
        let known = described.members.iter().find(|(id, _)| id.0 == own.node);
        match known {
            Some((_, incarnation)) if ![0, own.incarnation].contains(incarnation) => {
                Err(self.lost(highest(&described)))
            }
            _ => Ok(()),
        }
    }

    fn lost(&self, highest: u64) -> PredictError {
        let config = &self.0.config;
        let text = reason(
            Refusal::Lost,
            config.node_id.0,
            &config.advertise,
            Some(highest),
        );
        self.0.identity.fail(&text);
        PredictError::new(ErrorCode::Conflict, text)
    }

    fn stranger(&self, highest: u64) -> PredictError {
        let (own, advertise) = (self.0.config.node_id, &self.0.config.advertise);
        let next = highest.max(own.0) + 1;
        let text = format!(
            "the coordinators that 'cluster.bootstrap' names already form a cluster without \
             coordinator {own}, which does not start another cluster. To add it, start it with an \
             id that was never used ('node.id = {next}') and 'cluster.await_invitation = true', \
             and run `volley cluster add {next} {advertise}` at one of them"
        );
        self.0.identity.fail(&text);
        PredictError::new(ErrorCode::Conflict, text)
    }
}

fn highest(described: &CoordinatorDescription) -> u64 {
    let ids = described.members.iter().map(|(id, _)| id.0);
    ids.max().unwrap_or_default()
}

/// Decides by the replies of all other configured members.
fn decide(own: NodeId, incarnation: u64, answers: &[Answer]) -> Step {
    let mut wait = None;
    let mut incarnations = BTreeMap::new();
    for (id, answer) in answers {
        let Some(described) = answer else {
            wait.get_or_insert_with(|| format!("coordinator {id} does not answer"));
            continue;
        };
        if described.initialised && !described.members.is_empty() {
            let known = described.members.iter().find(|(id, _)| *id == own);
            match known {
                Some((_, known)) if *known == incarnation => {
                    return Step::Wait(
                        "this coordinator is a member, and the leader has not contacted it yet"
                            .into(),
                    );
                }
                Some(_) => return Step::Lost(highest(described)),
                None => return Step::Stranger(highest(described)),
            }
        }
        if described.initialised && described.node.is_none() {
            // An older version reports no members.
            return Step::Lost(own.0.max(id.0));
        }
        let why = match described.node {
            _ if described.initialised => Some(format!("coordinator {id} has voted already")),
            None => Some(format!(
                "coordinator {id} runs a version of Volley that is too old to bootstrap a cluster"
            )),
            Some(found) if found != *id => Some(format!(
                "coordinator {found} answers at the address of coordinator {id}"
            )),
            Some(_) => None,
        };
        wait = wait.or(why);
        incarnations.insert(*id, described.incarnation);
    }
    match wait {
        Some(why) => Step::Wait(why),
        None if answers.iter().all(|(id, _)| own < *id) => Step::Found(incarnations),
        None => Step::Wait("the coordinator with the lowest id starts the cluster".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use volley_types::control::CoordinatorReport;

    use super::*;

    fn says(node: u64, initialised: bool, members: &[(u64, u64)]) -> Answer {
        let described = CoordinatorDescription {
            report: CoordinatorReport {
                level: 6,
                version: String::new(),
                active_streams: 0,
                last_applied: None,
            },
            node: Some(NodeId(node)),
            incarnation: node * 10,
            initialised,
            members: members
                .iter()
                .map(|(id, incarnation)| (NodeId(*id), *incarnation))
                .collect(),
            reach: None,
        };
        (NodeId(node), Some(described))
    }

    fn empty(node: u64) -> Answer {
        says(node, false, &[])
    }

    fn decides(own: u64, answers: &[Answer]) -> Step {
        decide(NodeId(own), own * 10, answers)
    }

    #[test]
    fn the_lowest_of_all_that_are_empty_founds_the_cluster() {
        let found = Step::Found(BTreeMap::from([(NodeId(2), 20), (NodeId(3), 30)]));
        assert_eq!(decides(1, &[empty(2), empty(3)]), found);
        assert!(matches!(decides(2, &[empty(1), empty(3)]), Step::Wait(_)));
        assert_eq!(decides(1, &[]), Step::Found(BTreeMap::new()));
    }

    #[test]
    fn more_than_half_that_are_empty_prove_nothing() {
        let silent = (NodeId(3), None);
        let Step::Wait(why) = decides(1, &[empty(2), silent]) else {
            panic!("it does not wait");
        };
        assert!(why.contains("coordinator 3"), "{why}");
        // It has voted for a node that may have a membership.
        let voted = says(2, true, &[]);
        assert!(matches!(decides(1, &[voted, empty(3)]), Step::Wait(_)));
        let other = (NodeId(2), empty(7).1);
        assert!(matches!(decides(1, &[other, empty(3)]), Step::Wait(_)));
    }

    #[test]
    fn one_that_has_a_membership_is_enough_to_begin_none() {
        let members = [(1, 11), (2, 20), (3, 30)];
        let silent = (NodeId(3), None);
        let lost = decides(1, &[says(2, true, &members), silent.clone()]);
        assert_eq!(lost, Step::Lost(3), "another incarnation");
        let legacy = says(2, true, &[(1, 0), (2, 0), (3, 0)]);
        assert_eq!(decides(1, &[legacy, silent.clone()]), Step::Lost(3));
        // The founder knows the other members before it calls them.
        let founded = says(1, true, &[(1, 10), (2, 20), (3, 30)]);
        assert!(matches!(decides(3, &[founded, empty(2)]), Step::Wait(_)));
        let others = says(2, true, &[(2, 20), (5, 50)]);
        assert_eq!(decides(1, &[others, silent]), Step::Stranger(5));
    }
}
