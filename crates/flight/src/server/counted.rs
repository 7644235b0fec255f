//! Request bodies whose memory is counted while they arrive.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tonic::codegen::StdError;
use volley_types::{PredictError, Share};

use crate::status::to_status;

/// Memory share of one call's bodies. Clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct MessageShare(Arc<Mutex<Share>>);

impl MessageShare {
    pub(crate) fn new(share: Share) -> Self {
        Self(Arc::new(Mutex::new(share)))
    }

    fn grow(&self, bytes: usize) -> Result<(), PredictError> {
        self.0.lock().grow(bytes)
    }

    /// Releases this number of bytes.
    pub(super) fn release(&self, bytes: usize) {
        let mut share = self.0.lock();
        let left = share.bytes().saturating_sub(bytes);
        share.shrink_to(left);
    }
}

/// A body that fails when no memory is available for its next frame.
pub(crate) struct CountedBody<B> {
    body: Pin<Box<B>>,
    taken: MessageShare,
}

impl<B> CountedBody<B> {
    pub(crate) fn new(body: B, taken: MessageShare) -> Self {
        let body = Box::pin(body);
        Self { body, taken }
    }
}

impl<B> Body for CountedBody<B>
where
    B: Body,
    B::Error: Into<StdError>,
{
    type Data = B::Data;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, StdError>>> {
        let frame = match ready!(self.body.as_mut().poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            None => return Poll::Ready(None),
        };
        let bytes = frame.data_ref().map_or(0, Buf::remaining);
        let counted = self.taken.grow(bytes).map(|()| frame);
        Poll::Ready(Some(
            counted.map_err(|error| to_status(&error, None).into()),
        ))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use volley_types::{ErrorCode, Intake};

    use super::*;
    use crate::status::from_status;

    #[tokio::test]
    async fn a_body_takes_what_it_brings_and_fails_where_there_is_no_more() {
        let intake = Intake::new(10);
        let taken = MessageShare::new(intake.share());
        let whole = tonic::body::Body::new(String::from("12345678"));
        let mut counted = CountedBody::new(whole, taken.clone());
        let next = std::future::poll_fn(|cx| Pin::new(&mut counted).poll_frame(cx)).await;
        assert!(next.unwrap().is_ok());
        assert!(intake.share().grow(3).is_err());
        taken.release(5);
        intake.share().grow(7).unwrap();
        let more = tonic::body::Body::new(String::from("12345678"));
        let mut again = CountedBody::new(more, taken.clone());
        let next = std::future::poll_fn(|cx| Pin::new(&mut again).poll_frame(cx)).await;
        let status = next.unwrap().err().unwrap().downcast().unwrap();
        assert_eq!(from_status(*status).code, ErrorCode::TooLarge);
        drop((counted, again, taken));
        intake.share().grow(10).unwrap();
    }
}
