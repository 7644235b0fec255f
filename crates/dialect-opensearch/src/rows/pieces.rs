//! A body as a stream of pieces, with a share of the memory limits while they are buffered.

use bytes::BytesMut;
use futures::StreamExt;
use volley_http_edge::axum::body::{Body, BodyDataStream};
use volley_types::{PredictError, Share};

use volley_http_edge::body::content::broken;

/// The pieces of a body and their share of the memory for bodies.
pub(super) struct Pieces {
    body: BodyDataStream,
    share: Share,
}

impl Pieces {
    pub(super) fn new(body: Body, share: Share) -> Self {
        let body = body.into_data_stream();
        Self { body, share }
    }

    /// Appends the next piece to `buffer`. Returns false at the end of the body.
    ///
    /// # Errors
    /// `InvalidInput` if the body breaks off; `Overloaded` if the memory limits do not permit the
    /// piece.
    pub(super) async fn append(&mut self, buffer: &mut BytesMut) -> Result<bool, PredictError> {
        match self.body.next().await {
            Some(Ok(piece)) => {
                self.share.grow(piece.len())?;
                buffer.extend_from_slice(&piece);
                Ok(true)
            }
            Some(Err(error)) => Err(broken(error.into())),
            None => Ok(false),
        }
    }

    /// Reserves `room` bytes for parsing.
    ///
    /// # Errors
    /// `TooLarge` or `Overloaded` if the memory limits do not permit it.
    pub(super) fn read(&mut self, room: usize) -> Result<(), PredictError> {
        self.share.grow(room)
    }

    /// Releases the memory of consumed rows, except for `held` buffered bytes.
    pub(super) fn taken(&mut self, held: usize) {
        self.share.shrink_to(held);
    }
}
