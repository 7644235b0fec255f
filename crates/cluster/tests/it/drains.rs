//! Generators of drained nodes for the tests of records.

use std::collections::BTreeMap;

use proptest::collection::btree_map;
use proptest::prelude::*;
use volley_types::registry::{Drain, RegistryCommand};
use volley_types::{NodeId, NodeIdentity, WorkerId};

fn node() -> impl Strategy<Value = NodeIdentity> {
    let worker = "[a-z0-9]{1,9}".prop_map(|id| WorkerId::new(id).unwrap());
    prop_oneof![
        any::<u64>().prop_map(|id| NodeIdentity::Coordinator(NodeId(id))),
        worker.prop_map(NodeIdentity::Worker),
    ]
}

fn drain() -> impl Strategy<Value = Drain> {
    any::<bool>().prop_map(|force| Drain { force })
}

pub(crate) fn all() -> impl Strategy<Value = BTreeMap<NodeIdentity, Drain>> {
    btree_map(node(), drain(), 0..4)
}

pub(crate) fn change() -> impl Strategy<Value = RegistryCommand> {
    prop_oneof![
        (node(), drain()).prop_map(|(node, drain)| RegistryCommand::Drain(node, drain)),
        node().prop_map(RegistryCommand::Undrain),
    ]
}
