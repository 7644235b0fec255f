//! Drains of nodes. The registry does not know the existing nodes; the proposer of a drain checks
//! them.

use volley_types::registry::{Drain, RegistryReply, RegistryState};
use volley_types::{NodeIdentity, PredictError};

use super::limits::{MAX_DRAINS, within};
use super::{changed, unchanged};

pub(super) fn drain(
    state: &mut RegistryState,
    node: &NodeIdentity,
    drain: Drain,
) -> Result<RegistryReply, PredictError> {
    if state.drains.get(node) == Some(&drain) {
        return unchanged(state);
    }
    if !state.drains.contains_key(node) {
        let drained = state.drains.len() + 1;
        within("the number of drained nodes", drained, MAX_DRAINS)?;
    }
    state.drains.insert(node.clone(), drain);
    changed(state, None)
}

pub(super) fn undrain(
    state: &mut RegistryState,
    node: &NodeIdentity,
) -> Result<RegistryReply, PredictError> {
    match state.drains.remove(node) {
        Some(_) => changed(state, None),
        None => unchanged(state),
    }
}
