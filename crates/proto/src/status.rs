//! gRPC codes and messages of errors, the same for every service.

use tonic::Code;
use volley_types::{ErrorCode, PredictError};

/// The gRPC code of `code`.
#[must_use]
pub fn grpc_code(code: ErrorCode) -> Code {
    match code {
        ErrorCode::InvalidInput => Code::InvalidArgument,
        ErrorCode::Unauthenticated => Code::Unauthenticated,
        ErrorCode::PermissionDenied => Code::PermissionDenied,
        ErrorCode::NotFound => Code::NotFound,
        ErrorCode::NotDeployed => Code::FailedPrecondition,
        ErrorCode::Conflict => Code::Aborted,
        ErrorCode::TooLarge => Code::OutOfRange,
        ErrorCode::Overloaded => Code::ResourceExhausted,
        ErrorCode::Cancelled => Code::Cancelled,
        ErrorCode::DeadlineExceeded | ErrorCode::UpstreamTimeout => Code::DeadlineExceeded,
        ErrorCode::Unavailable => Code::Unavailable,
        // Not `Unavailable`: gRPC clients retry it automatically, but the upstream may have billed
        // the first call.
        ErrorCode::UpstreamFailed | ErrorCode::UpstreamIncomplete | ErrorCode::Internal => {
            Code::Internal
        }
        ErrorCode::Unimplemented => Code::Unimplemented,
    }
}

/// Maximum length of a status message in bytes. The message is sent in HTTP/2 trailers, which are
/// limited in size.
const MAX_MESSAGE_BYTES: usize = 2048;

/// The public message of `error`, truncated to the allowed length.
#[must_use]
pub fn public_message(error: &PredictError) -> String {
    let mut message = error.message.clone();
    if message.len() > MAX_MESSAGE_BYTES {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
        message.push('…');
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let error = PredictError::invalid("é".repeat(5000));
        assert!(public_message(&error).len() <= MAX_MESSAGE_BYTES + 3);
    }
}
