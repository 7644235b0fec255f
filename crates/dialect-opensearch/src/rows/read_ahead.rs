//! Reading a little ahead of the model. A body that nobody reads tells nothing: while a model
//! takes no rows, its client could leave unnoticed. So whoever waits for an answer also reads the
//! body, into a queue of a few pieces that the rows are taken from.

use std::pin::Pin;

use bytes::Bytes;
use futures::StreamExt;
use tokio::sync::mpsc;
use volley_http_edge::axum::body::Body;
use volley_types::PredictError;

use super::RequestBody;
use volley_http_edge::body::content::broken;

/// Pieces of a body, as the socket gave them.
const PIECES: usize = 4;

/// The reading of one body. It goes on while [`ReadAhead::broken`] is waited for.
pub(super) struct ReadAhead(Option<ReadFuture>);

type ReadFuture = Pin<Box<dyn Future<Output = Result<(), PredictError>> + Send>>;

impl ReadAhead {
    /// The reading of what was given, and the same to be read from.
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

    /// For a request whose body was read.
    pub(super) fn none() -> Self {
        Self(None)
    }

    fn begin(body: Body) -> (Self, Body) {
        let (sender, receiver) =
            mpsc::channel::<Result<Bytes, volley_http_edge::axum::Error>>(PIECES);
        let read = async move {
            let mut body = body.into_data_stream();
            // The place first: what is read has somewhere to go.
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

    /// Reads on, and returns once the body breaks off; never where it comes to its end.
    ///
    /// # Cancel safety
    /// Nothing is lost.
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
