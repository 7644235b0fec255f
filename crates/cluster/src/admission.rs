//! Checks that a message comes from the member that it names, and that this node is still that
//! member itself.
//!
//! Every consensus call is checked before consensus receives it, and every reply before it counts.
//! [`crate::witness`] decides by the sender's identity. A rejected caller [leaves the
//! cluster](Admission::fail) for good. So does a node that receives a call for another incarnation,
//! because the members know another directory.
//!
//! Members before level 6 send no identity. They are accepted until the membership contains the
//! incarnations of all members. A leader records those once all members support level 6.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{SetOnce, watch};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Request, Status};
use volley_proto::raft::v1 as wire;
use volley_security::nodes::Peer;
use volley_types::NodeIdentity;
use volley_types::registry::MEMBER_LEVEL;

use crate::Metrics;
use crate::identity::{Ballot, ExpectedNode, Identity};
use crate::lines::{Lines, membership_client};
use crate::store::disk::Disk;
use crate::witness::{Record, Records, Refusal, Verdict, judge};

/// Metadata key with the reason of a rejection: the name of a [`Refusal`].
const REFUSED: &str = "volley-refused";
/// Metadata key with the highest member id: a node that lost its data does not know the used ids.
const HIGHEST: &str = "volley-highest-member";
/// Timeout of the probe whether an earlier process still runs.
const PROBE: Duration = Duration::from_millis(700);

/// Identity of this node, and the checks of other nodes' identities.
pub(crate) struct Admission {
    own: Identity,
    level: u32,
    advertise: String,
    lines: Arc<dyn Lines>,
    disk: Arc<Mutex<Option<Disk>>>,
    metrics: SetOnce<watch::Receiver<Metrics>>,
    records: Mutex<Records>,
    /// Locks of the members whose new process is being checked.
    admitting: Mutex<BTreeMap<u64, Arc<tokio::sync::Mutex<()>>>>,
    failure: watch::Sender<Option<Arc<str>>>,
}

impl std::fmt::Debug for Admission {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let own = &self.own;
        formatter
            .debug_struct("Admission")
            .field("own", own)
            .finish_non_exhaustive()
    }
}

impl Admission {
    pub(crate) fn new(
        own: Identity,
        (level, advertise): (u32, &str),
        lines: Arc<dyn Lines>,
        disk: Arc<Mutex<Option<Disk>>>,
        known: &[u8],
    ) -> Self {
        Self {
            own,
            level,
            advertise: advertise.to_owned(),
            lines,
            disk,
            metrics: SetOnce::new(),
            // Records of another version are ignored.
            records: Mutex::new(serde_json::from_slice(known).unwrap_or_default()),
            admitting: Mutex::default(),
            failure: watch::Sender::new(None),
        }
    }

    /// Sets the source of the membership, to which the stored one is already published.
    pub(crate) fn watch(&self, metrics: watch::Receiver<Metrics>) {
        _ = self.metrics.set(metrics);
    }

    /// Waits for [`Admission::watch`]. An earlier call would lack the highest id. Cancel safe.
    pub(crate) async fn is_ready(&self) {
        self.metrics.wait().await;
    }

    pub(crate) fn own(&self) -> Identity {
        self.own
    }

    /// Returns the reason why this node has left the cluster; `None` while it works.
    pub(crate) fn failure(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.failure.subscribe()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// Ends this node's part in the cluster. The first reason is kept.
    pub(crate) fn fail(&self, reason: &str) {
        self.failure.send_if_modified(|failure| {
            let is_first = failure.is_none();
            if is_first {
                tracing::error!(reason, "coordinator leaves service");
                *failure = Some(reason.into());
            }
            is_first
        });
    }

    /// Calls [`Admission::fail`] because other members rejected this node's identity.
    fn refused_here(&self, refusal: Refusal, highest: Option<u64>) {
        let highest = self.highest().max(highest);
        self.fail(&reason(refusal, self.own.node, &self.advertise, highest));
    }

    /// Returns the highest id among the members.
    fn highest(&self) -> Option<u64> {
        self.members(|id, _| id).into_iter().max()
    }

    /// Adds this node's identity to a reply.
    pub(crate) fn sign(&self, metadata: &mut MetadataMap) {
        self.own.mark(metadata);
    }

    /// Adds this node's identity, and the one expected of `target`, to a call.
    pub(crate) fn address(&self, target: u64, metadata: &mut MetadataMap) {
        self.own.mark(metadata);
        let recorded = self.records.lock();
        let recorded = recorded.get(&target).map(|record| record.incarnation);
        let expected = ExpectedNode {
            node: target,
            incarnation: self.incarnation(target).or(recorded),
            highest: self.highest().unwrap_or_default(),
        };
        expected.mark(metadata);
    }

    /// Checks the metadata of a call. While this node has no membership, every sender is accepted.
    ///
    /// # Errors
    /// The reply to a rejected sender.
    pub(crate) async fn check_call(&self, metadata: &MetadataMap) -> Result<(), Status> {
        if self.has_failed() {
            return Err(Status::unavailable("this coordinator has left service"));
        }
        let malformed = |_| Status::invalid_argument("a malformed identity");
        if let Some(expected) = ExpectedNode::read(metadata).map_err(malformed)? {
            if expected.node != self.own.node {
                return Err(Status::unavailable(
                    "another coordinator is at this address",
                ));
            }
            let own = self.own.incarnation;
            if expected.incarnation.is_some_and(|expected| expected != own) {
                let highest = (expected.highest != 0).then_some(expected.highest);
                self.refused_here(Refusal::Lost, highest);
                return Err(Status::unavailable("this coordinator's data was lost"));
            }
        }
        match Identity::read(metadata).map_err(malformed)? {
            Some(sender) => {
                let admitted = self.admit(&sender).await;
                admitted.map_err(|refusal| refused(refusal, self.highest()))
            }
            None => self.check_silent(),
        }
    }

    /// Checks the metadata of a reply from `target`.
    ///
    /// # Errors
    /// `Unavailable` if the reply comes from another coordinator, or from another incarnation.
    pub(crate) async fn check_answer(
        &self,
        target: u64,
        metadata: &MetadataMap,
    ) -> Result<(), Status> {
        let malformed = |_| Status::unavailable("a malformed identity");
        match Identity::read(metadata).map_err(malformed)? {
            Some(sender) if sender.node != target => {
                Err(Status::unavailable("another coordinator answered"))
            }
            Some(sender) => self.admit(&sender).await.map_err(|refusal| {
                tracing::warn!(
                    node = target,
                    reason = refusal.name(),
                    "reply rejected: the coordinator's incarnation differs from the member's"
                );
                Status::unavailable("the coordinator at this address has another incarnation")
            }),
            None => self.check_silent(),
        }
    }

    /// Leaves the cluster if the reply to a call of this node rejects its identity.
    pub(crate) fn heed(&self, status: &Status) {
        if let Some((refusal, highest)) = refusal_of(status) {
            self.refused_here(refusal, highest);
        }
    }

    /// Records the vote and the committed index that a member has reported.
    pub(crate) fn raise(&self, node: u64, vote: Ballot, committed: u64) {
        let mut records = self.records.lock();
        let raised = records
            .get_mut(&node)
            .is_some_and(|record| record.raise(vote, committed));
        if raised {
            self.keep(&mut records);
        }
    }

    /// Returns whether a node has been a member and is not one now.
    pub(crate) fn was_removed(&self, node: u64) -> bool {
        let was_member = {
            let records = self.records.lock();
            records.get(&node).is_some_and(|record| record.was_member)
        };
        let members = self.members(|id, _| id);
        was_member && !members.is_empty() && !members.contains(&node)
    }

    /// Checks the client certificate of a consensus call, if there is one. It must be that of the
    /// node that the call names, and of a member, or of a node that knows this node's incarnation:
    /// it may have joined while this node was away.
    ///
    /// # Errors
    /// `PermissionDenied` for other callers.
    pub(crate) fn check_certificate<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let Some(node) = certified(request) else {
            return Ok(());
        };
        let named = Identity::read(request.metadata()).ok().flatten();
        if named.is_some_and(|named| named.node != node) {
            return Err(Status::permission_denied(
                "the certificate is another coordinator's",
            ));
        }
        let members = self.members(|id, _| id);
        let expected = ExpectedNode::read(request.metadata()).ok().flatten();
        let expected = expected.and_then(|expected| expected.incarnation);
        let knows_this_one = expected == Some(self.own.incarnation) && !self.was_removed(node);
        match members.is_empty() || members.contains(&node) || knows_this_one {
            true => Ok(()),
            false => Err(Status::permission_denied(
                "the certificate does not belong to a current coordinator of the cluster",
            )),
        }
    }

    /// Checks the client certificate of a call that is reserved for members, if the connection has
    /// one.
    ///
    /// # Errors
    /// `PermissionDenied` for other callers.
    pub(crate) fn check_member<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let members = self.members(|id, _| id);
        match certified(request) {
            Some(node) if !members.is_empty() && !members.contains(&node) => {
                Err(Status::permission_denied(
                    "the certificate does not belong to a current coordinator of the cluster",
                ))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether `incarnation` differs from the member's. 0 means that it is unknown.
    pub(crate) fn is_other(&self, node: u64, incarnation: u64) -> bool {
        let known = self.incarnation(node);
        incarnation != 0 && known.is_some_and(|known| known != incarnation)
    }

    /// Returns the incarnations of members that the membership records none for; `None` if one of
    /// them is unknown here.
    pub(crate) fn unrecorded(&self) -> Option<BTreeMap<u64, u64>> {
        let records = self.records.lock();
        let known = self.members(|id, incarnation| (id, incarnation));
        let unrecorded = known
            .into_iter()
            .filter(|(_, incarnation)| *incarnation == 0);
        unrecorded
            .map(|(id, _)| match records.get(&id) {
                _ if id == self.own.node => Some((id, self.own.incarnation)),
                Some(record) => Some((id, record.incarnation)),
                None => None,
            })
            .collect()
    }

    /// Accepts a sender without an identity while it may run a version before level 6.
    fn check_silent(&self) -> Result<(), Status> {
        let incarnations = self.members(|_, incarnation| incarnation);
        let all_recorded = !incarnations.is_empty() && !incarnations.contains(&0);
        match all_recorded && MEMBER_LEVEL <= self.level {
            true => Err(Status::permission_denied(
                "the caller sent no identity: its version of Volley is too old for this cluster",
            )),
            false => Ok(()),
        }
    }

    async fn admit(&self, sender: &Identity) -> Result<(), Refusal> {
        if sender.node == self.own.node {
            return match sender.is(&self.own) {
                true => Ok(()),
                false => Err(Refusal::Copy),
            };
        }
        // A node without a membership cannot judge the others.
        if self.members(|_, _| ()).is_empty() {
            return Ok(());
        }
        if let Some(known) = self.known(sender) {
            return known;
        }
        let looking = self
            .admitting
            .lock()
            .entry(sender.node)
            .or_default()
            .clone();
        let _one = looking.lock().await;
        match self.judge(sender) {
            Verdict::Known => return Ok(()),
            Verdict::Refused(refusal) => return Err(refusal),
            Verdict::New => {}
            Verdict::NewUnless(record) | Verdict::Older(record)
                if self.still_runs(sender.node, &record).await =>
            {
                return Err(Refusal::Copy);
            }
            Verdict::Older(_) => return Err(Refusal::Stale),
            Verdict::NewUnless(_) => {}
        }
        let mut records = self.records.lock();
        let record = Record::admitted(sender, records.get(&sender.node));
        records.insert(sender.node, record);
        self.keep(&mut records);
        Ok(())
    }

    /// Returns the decision if it needs no probe.
    fn known(&self, sender: &Identity) -> Option<Result<(), Refusal>> {
        match self.judge(sender) {
            Verdict::Known => Some(Ok(())),
            Verdict::Refused(refusal) => Some(Err(refusal)),
            Verdict::New | Verdict::NewUnless(_) | Verdict::Older(_) => None,
        }
    }

    fn judge(&self, sender: &Identity) -> Verdict {
        let member = self.incarnation(sender.node);
        let acknowledged = self.acknowledged(sender.node);
        let records = self.records.lock();
        judge(sender, member, records.get(&sender.node), acknowledged)
    }

    /// Returns the position up to which a follower has acknowledged this node's log; `None` if this
    /// node does not lead.
    fn acknowledged(&self, node: u64) -> Option<(Ballot, u64)> {
        let metrics = self.metrics.get()?.borrow();
        let followers = metrics.replication.as_ref()?;
        let matching = (*followers.get(&node)?)?;
        Some((Ballot::of(metrics.vote), matching.index))
    }

    /// Returns whether the process of `record` answers at the member's address.
    async fn still_runs(&self, node: u64, record: &Record) -> bool {
        let members = self.address_of(node);
        let Some(address) = members else { return false };
        let asked = tokio::time::timeout(PROBE, async {
            let line = self.lines.connect(&address).await?;
            // A probe without this node's identity triggers no probe back.
            let request = Request::new(wire::DescribeRequest {});
            let answer = membership_client(line).describe(request).await.ok()?;
            Identity::read(answer.metadata()).ok().flatten()
        });
        let process = asked.await.ok().flatten();
        process.is_some_and(|process| process.node == node && record.is_of(&process))
    }

    fn address_of(&self, node: u64) -> Option<String> {
        let metrics = self.metrics.get()?.borrow();
        let members = metrics.membership_config.membership();
        members.get_node(&node).map(|member| member.addr.clone())
    }

    /// Returns the incarnation of a member according to the membership.
    fn incarnation(&self, node: u64) -> Option<u64> {
        let metrics = self.metrics.get()?.borrow();
        let members = metrics.membership_config.membership();
        let incarnation = members.get_node(&node)?.incarnation;
        (incarnation != 0).then_some(incarnation)
    }

    fn members<T>(&self, look: impl Fn(u64, u64) -> T) -> Vec<T> {
        let Some(metrics) = self.metrics.get() else {
            return Vec::new();
        };
        let metrics = metrics.borrow();
        let members = metrics.membership_config.membership();
        members
            .nodes()
            .map(|(id, member)| look(*id, member.incarnation))
            .collect()
    }

    /// Persists the records. A failure is only logged: a broken disk soon fails a write of Raft.
    fn keep(&self, records: &mut Records) {
        for member in self.members(|id, _| id) {
            if let Some(record) = records.get_mut(&member) {
                record.was_member = true;
            }
        }
        let disk = self.disk.lock();
        let Some(disk) = disk.as_ref() else { return };
        let kept = serde_json::to_vec(records).map_err(Into::into);
        if let Err(error) = kept.and_then(|records| disk.witness(records)) {
            tracing::warn!(error = %error, "coordinator identity records not written");
        }
    }
}

/// Returns the coordinator in the client certificate of a call.
fn certified<T>(request: &Request<T>) -> Option<u64> {
    let peer = request.extensions().get::<Peer>()?;
    match peer.identity.as_ref()? {
        NodeIdentity::Coordinator(node) => Some(node.0),
        NodeIdentity::Worker(_) => None,
    }
}

/// Builds the reply to a rejected caller. `highest` is the highest known id.
fn refused(refusal: Refusal, highest: Option<u64>) -> Status {
    let mut status =
        Status::failed_precondition("the caller's incarnation differs from the member's");
    let metadata = status.metadata_mut();
    metadata.insert(REFUSED, MetadataValue::from_static(refusal.name()));
    if let Some(highest) = highest {
        metadata.insert(HIGHEST, highest.into());
    }
    status
}

/// Reads the [`Refusal`] and the highest id from a reply that [`refused`] built.
fn refusal_of(status: &Status) -> Option<(Refusal, Option<u64>)> {
    let metadata = status.metadata();
    let refusal = Refusal::from_name(metadata.get(REFUSED)?.to_str().ok()?)?;
    let highest = metadata.get(HIGHEST).and_then(|id| id.to_str().ok());
    Some((refusal, highest.and_then(|id| id.parse().ok())))
}

/// Message for the operator of a rejected node. `highest` is the highest known id.
pub(crate) fn reason(refusal: Refusal, node: u64, advertise: &str, highest: Option<u64>) -> String {
    let next = highest.map(|highest| highest.max(node) + 1);
    let next = next.map_or_else(|| "NEW_ID".to_owned(), |next| next.to_string());
    let what = match refusal {
        Refusal::Lost => format!(
            "the cluster has a membership in which coordinator {node} has another data directory: \
             this coordinator's directory, with its votes and log entries, was lost, deleted or \
             replaced"
        ),
        Refusal::Stale => format!(
            "the data directory of coordinator {node} is older than its last vote or acknowledged \
             entry: an older copy was restored, or its log was truncated"
        ),
        Refusal::Copy => {
            format!("another process runs as coordinator {node} with the same data or a copy of it")
        }
    };
    let command = match refusal {
        Refusal::Lost | Refusal::Stale => format!("replace {node} {next} {advertise}"),
        Refusal::Copy => format!("add {next} {advertise}"),
    };
    format!(
        "{what}; it must not take part under this id. Start it with an empty data directory, \
         'node.id = {next}' and 'cluster.await_invitation = true', and run `volley cluster \
         {command}` against a working coordinator"
    )
}

#[cfg(test)]
mod tests;
