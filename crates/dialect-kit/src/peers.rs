//! The way to what other coordinators keep.

use std::sync::Arc;

use volley_types::{NodeId, StreamSource};

/// The way to the streams and responses that another coordinator keeps; `None` where it is no
/// member.
pub type PeerStreams = Arc<dyn Fn(NodeId) -> Option<Arc<dyn StreamSource>> + Send + Sync>;
