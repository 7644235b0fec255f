//! The request's messages.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use arrow_flight::{FlightData, FlightDescriptor};
use futures::{Stream, StreamExt, stream};
use volley_types::input::BatchStream;
use volley_types::{Input, PredictError};

use crate::END;
use crate::egress::{Encoder, REQUEST_MESSAGE_BYTES};

/// The error that ended the input, if any. The server receives an input without end marker; the
/// caller receives this error.
pub(super) type InputError = Arc<OnceLock<PredictError>>;

/// The messages of one exchange's input. It is a named type because the compiler cannot prove that
/// a future with the bare trait object is `Send`.
pub(crate) struct Messages(Pin<Box<dyn Stream<Item = FlightData> + Send>>);

impl Stream for Messages {
    type Item = FlightData;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<FlightData>> {
        self.0.as_mut().poll_next(cx)
    }
}

/// All messages of `input`. The first one has the `descriptor`, the last one the end marker.
///
/// # Errors
/// The errors of [`Encoder::batch`] for rows that are already in memory.
pub(super) fn messages(
    descriptor: FlightDescriptor,
    input: Input,
) -> Result<(Messages, InputError), PredictError> {
    let mut encoder = Encoder::new(REQUEST_MESSAGE_BYTES);
    let failed = InputError::default();
    let first = encoder.schema(&input.schema()).with_descriptor(descriptor);
    let messages: Pin<Box<dyn Stream<Item = FlightData> + Send>> = match input {
        Input::Batch(batch) => {
            let mut messages = vec![first];
            encoder.batch(&batch, &mut messages)?;
            if let Some(last) = messages.last_mut() {
                last.app_metadata = END.into();
            }
            Box::pin(stream::iter(messages))
        }
        Input::Stream { batches, .. } => {
            let rest = streamed(encoder, batches, failed.clone());
            Box::pin(stream::iter([first]).chain(rest))
        }
    };
    Ok((Messages(messages), failed))
}

fn streamed(
    encoder: Encoder,
    batches: BatchStream,
    failed: InputError,
) -> impl Stream<Item = FlightData> + Send {
    let state = (encoder, batches, failed, false);
    stream::unfold(
        state,
        |(mut encoder, mut batches, failed, ended)| async move {
            if ended {
                return None;
            }
            let mut messages = Vec::new();
            let (error, ended) = match batches.next().await {
                Some(Ok(batch)) => (encoder.batch(&batch, &mut messages).err(), false),
                Some(Err(error)) => (Some(error), true),
                None => {
                    messages.push(FlightData::new().with_app_metadata(END));
                    (None, true)
                }
            };
            if let Some(error) = error {
                // No end marker follows, so that the server does not treat the input as complete.
                let _already_failed = failed.set(error);
                return None;
            }
            Some((stream::iter(messages), (encoder, batches, failed, ended)))
        },
    )
    .flatten()
}
