//! Reads a few pieces of a body ahead of the model. While a model takes no rows, nothing else reads
//! the body, so a disconnect of the client would not be noticed. The task that waits for the
//! response therefore also reads the body into a short queue, from which the rows are taken.

use std::pin::Pin;

use bytes::Bytes;
use futures::StreamExt;
use tokio::sync::mpsc;
use volley_http_edge::axum::body::Body;
use volley_types::PredictError;

use super::RequestBody;
use volley_http_edge::body::content::broken;

/// Maximum number of queued pieces, as the socket delivered them.
const PIECES: usize = 4;

/// Reads one body, but only while [`ReadAhead::broken`] is awaited.
pub(super) struct ReadAhead(Option<ReadFuture>);

type ReadFuture = Pin<Box<dyn Future<Output = Result<(), PredictError>> + Send>>;

impl ReadAhead {
    /// Splits a body into its reader and the body to take rows from.
    pub(super) fn of(given: RequestBody) -> (Self, RequestBody) {
        match given {
            RequestBody::Json(_) => (Self(None), given),
            RequestBody::Lines(body, share) => {
                let (ahead, body) = Self::begin(body);
                (ahead, RequestBody::Lines(body, share))
            }
            RequestBody::Arrow(body, share) => {
                let (ahead, body) = Self::begin(body);
                (ahead, RequestBody::Arrow(body, share))
            }
        }
    }

    /// For a request whose body has been read completely.
    pub(super) fn none() -> Self {
        Self(None)
    }

    fn begin(body: Body) -> (Self, Body) {
        let (sender, receiver) =
            mpsc::channel::<Result<Bytes, volley_http_edge::axum::Error>>(PIECES);
        let read = async move {
            let mut body = body.into_data_stream();
            // Reserves a place in the queue before reading, so that no piece is lost.
            while let Ok(place) = sender.reserve().await {
                match body.next().await {
                    Some(Ok(piece)) => place.send(Ok(piece)),
                    Some(Err(error)) => return Err(broken(error.into())),
                    None => break,
                }
            }
            Ok(())
        };
        let rest = futures::stream::unfold(receiver, async |mut receiver| {
            Some((receiver.recv().await?, receiver))
        });
        (Self(Some(Box::pin(read))), Body::from_stream(rest))
    }

    /// Continues reading. Returns when the body breaks off, and never if it ends normally.
    ///
    /// # Cancel safety
    /// Cancel safe: a later call continues where this one stopped.
    pub(super) async fn broken(&mut self) -> PredictError {
        if let Some(reading) = &mut self.0 {
            let read = reading.as_mut().await;
            self.0 = None;
            if let Err(error) = read {
                return error;
            }
        }
        std::future::pending().await
    }
}
