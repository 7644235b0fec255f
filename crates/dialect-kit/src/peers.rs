//! Access to streams and responses of other coordinators.

use std::sync::Arc;

use volley_types::{NodeId, StreamSource};

/// Returns the streams and responses of another coordinator; `None` if it is not a member.
pub type PeerStreams = Arc<dyn Fn(NodeId) -> Option<Arc<dyn StreamSource>> + Send + Sync>;
