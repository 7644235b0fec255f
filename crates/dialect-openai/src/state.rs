//! State of OpenAI's dialect on a node.

use std::sync::Arc;

use volley_types::{StreamId, StreamSource};

use crate::responses::store::Responses;
use volley_dialect_kit::peers::PeerStreams;
use volley_http_edge::edge::{DialectCaller, Edge};

/// The caller of a route that stores responses.
pub(crate) type ResponsesCaller = DialectCaller<OpenAi>;

/// OpenAI's dialect, with the responses that later requests may reference.
#[derive(Clone)]
pub struct OpenAi {
    edge: Edge,
    responses: Responses,
    peers: PeerStreams,
}

impl OpenAi {
    /// Creates the dialect at `edge`. `responses` are those of this node; `peers` opens those of
    /// other nodes.
    #[must_use]
    pub fn new(edge: &Edge, responses: Responses, peers: PeerStreams) -> Self {
        Self {
            edge: edge.clone(),
            responses,
            peers,
        }
    }

    /// The responses of this node.
    pub(crate) fn responses(&self) -> &Responses {
        &self.responses
    }

    /// The store of the node that created a response; `None` if that node is not a member.
    pub(crate) fn holder(&self, id: &StreamId) -> Option<Arc<dyn StreamSource>> {
        if id.node == self.responses.node() {
            return Some(Arc::new(self.responses.clone()));
        }
        (self.peers)(id.node)
    }
}

impl AsRef<Edge> for OpenAi {
    fn as_ref(&self) -> &Edge {
        &self.edge
    }
}
