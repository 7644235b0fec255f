//! Conversions of drained nodes: wire ⇄ [`volley_types::registry`].

use std::collections::BTreeMap;

use volley_types::registry::Drain;
use volley_types::{NodeId, NodeIdentity, PredictError, WorkerId};

use crate::registry::v1 as wire;
use crate::registry::v1::drain::Node;

pub(crate) fn drains_to_wire(all: &BTreeMap<NodeIdentity, Drain>) -> Vec<wire::Drain> {
    let all = all.iter();
    all.map(|(node, drain)| drain_to_wire(node, *drain))
        .collect()
}

pub(crate) fn drains_from_wire(
    all: Vec<wire::Drain>,
) -> Result<BTreeMap<NodeIdentity, Drain>, PredictError> {
    all.into_iter().map(drain_from_wire).collect()
}

pub(crate) fn drain_to_wire(node: &NodeIdentity, drain: Drain) -> wire::Drain {
    wire::Drain {
        node: Some(match node {
            NodeIdentity::Coordinator(id) => Node::Coordinator(id.0),
            NodeIdentity::Worker(id) => Node::Worker(id.to_string()),
        }),
        force: drain.force,
    }
}

pub(crate) fn drain_from_wire(drain: wire::Drain) -> Result<(NodeIdentity, Drain), PredictError> {
    let missing = || PredictError::invalid("a node to drain has no id");
    let node = match drain.node.ok_or_else(missing)? {
        Node::Coordinator(id) => NodeIdentity::Coordinator(NodeId(id)),
        Node::Worker(id) => NodeIdentity::Worker(WorkerId::new(id)?),
    };
    Ok((node, Drain { force: drain.force }))
}
