//! A body as it comes, counted for as long as it is held.

use bytes::BytesMut;
use futures::StreamExt;
use volley_http_edge::axum::body::{Body, BodyDataStream};
use volley_types::{PredictError, Share};

use volley_http_edge::body::content::broken;

/// The pieces of a body, and what they take of the memory for bodies.
pub(super) struct Pieces {
    body: BodyDataStream,
    share: Share,
}

impl Pieces {
    pub(super) fn new(body: Body, share: Share) -> Self {
        let body = body.into_data_stream();
        Self { body, share }
    }

    /// Appends the next piece to `buffer`; false at the body's end.
    ///
    /// # Errors
    /// `InvalidInput` for a body that breaks off; `Overloaded` where there is no memory for it.
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

    /// Takes what reading so much of the body costs beside it.
    ///
    /// # Errors
    /// `TooLarge` or `Overloaded` where there is no memory for it.
    pub(super) fn read(&mut self, room: usize) -> Result<(), PredictError> {
        self.share.grow(room)
    }

    /// Gives back what it took for rows that were taken, and keeps what is for `held` bytes.
    pub(super) fn taken(&mut self, held: usize) {
        self.share.shrink_to(held);
    }
}
