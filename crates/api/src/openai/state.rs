//! What OpenAI's dialect keeps on a node.

use std::sync::Arc;

use volley_types::{HeldStreams, StreamId};

use crate::edge::{DialectCaller, Edge};
use crate::openai::responses::store::Responses;
use crate::peers::PeerStreams;

/// A caller of routes that keep responses.
pub(crate) type ResponsesCaller = DialectCaller<OpenAi>;

/// OpenAI's dialect, with the responses that later requests name.
#[derive(Clone)]
pub(crate) struct OpenAi {
    edge: Edge,
    responses: Responses,
    peers: PeerStreams,
}

impl OpenAi {
    /// The dialect at `edge`; `responses` are kept on this node, and `peers` leads to those of
    /// other nodes.
    #[must_use]
    pub(crate) fn new(edge: &Edge, responses: Responses, peers: PeerStreams) -> Self {
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
    pub(crate) fn holder(&self, id: &StreamId) -> Option<Arc<dyn HeldStreams>> {
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
