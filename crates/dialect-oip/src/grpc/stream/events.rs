//! The messages of a model that streams events: one for each event.

use arrow_array::RecordBatch;
use volley_types::PredictError;

use super::Message;
use crate::grpc::reply::Reply;

/// The messages of the next event, or of the end. The flag is true at the end.
///
/// The model may end the stream at any time, so the last event does not have the mark of the last
/// message; with `empty_final` a message without outputs has it.
pub(super) fn messages(
    event: Option<RecordBatch>,
    reply: &Reply,
) -> Result<(Vec<Message>, bool), PredictError> {
    let message = |response, last| Message::Response { response, last };
    let Some(event) = event else {
        let last = reply.empty_final.then(|| message(reply.empty(), true));
        return Ok((last.into_iter().collect(), true));
    };
    let (response, shared) = reply.whole(&[event])?;
    match shared.is_empty() {
        true => Ok((vec![message(response, false)], false)),
        false => Err(PredictError::invalid(
            "events cannot be written to shared memory, because each would replace the one \
             before; leave its parameters out",
        )),
    }
}
