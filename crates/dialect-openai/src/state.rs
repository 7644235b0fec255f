//! What OpenAI's dialect keeps on a node.

use std::sync::Arc;

use volley_types::{StreamId, StreamSource};

use crate::responses::store::Responses;
use volley_dialect_kit::peers::PeerStreams;
use volley_http_edge::edge::{DialectCaller, Edge};

/// A caller of routes that keep responses.
pub(crate) type ResponsesCaller = DialectCaller<OpenAi>;

/// OpenAI's dialect, with the responses that later requests name.
#[derive(Clone)]
pub struct OpenAi {
    edge: Edge,
    responses: Responses,
    peers: PeerStreams,
}

impl OpenAi {
    /// The dialect at `edge`; `responses` are kept on this node, and `peers` leads to those of
    /// other nodes.
    #[must_use]
    pub fn new(edge: &Edge, responses: Responses, peers: PeerStreams) -> Self {
        Self {
            edge: edge.clone(),
            responses,
            peers,
        }
    }

    /// The responses that this node keeps.
    pub(crate) fn responses(&self) -> &Responses {
        &self.responses
    }

    /// The node that keeps a response; `None` where that is no member.
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
