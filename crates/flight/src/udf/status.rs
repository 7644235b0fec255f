//! Errors in the format of each engine's client.

use tonic::{Code, Status};
use volley_proto::status::{grpc_code, public_message};
use volley_types::{ErrorCode, PredictError, RequestId};

use super::caller::Engine;
use super::msgpack::{encode, map};
use crate::status::{details, status_of};

/// The status of `error` for a caller from `engine`.
///
/// Transient errors are UNAVAILABLE, the only code that RisingWave retries. DuckDB raises an
/// exception of the class in the details, or an I/O error with the message if there are no details.
pub(crate) fn to_status(
    error: &PredictError,
    request_id: Option<&RequestId>,
    engine: Engine,
) -> Status {
    let code = match error.code {
        ErrorCode::Overloaded => Code::Unavailable,
        code => grpc_code(code),
    };
    let details = match engine {
        Engine::ArrowUdf | Engine::Databend => details(error, request_id),
        Engine::Airport => exception(error).unwrap_or_default(),
    };
    status_of(code, public_message(error), details)
}

/// The exception class that Airport raises, if it has one for the error.
fn exception(error: &PredictError) -> Option<Vec<u8>> {
    let class = match error.code {
        ErrorCode::InvalidInput
        | ErrorCode::NotFound
        | ErrorCode::NotDeployed
        | ErrorCode::Conflict
        | ErrorCode::TooLarge
        | ErrorCode::Unimplemented => "InvalidInputException",
        ErrorCode::Unauthenticated | ErrorCode::PermissionDenied => "PermissionException",
        ErrorCode::Overloaded
        | ErrorCode::Cancelled
        | ErrorCode::DeadlineExceeded
        | ErrorCode::Unavailable
        | ErrorCode::UpstreamFailed
        | ErrorCode::UpstreamTimeout
        | ErrorCode::UpstreamIncomplete
        | ErrorCode::Internal => return None,
    };
    Some(encode(&map([
        ("exception_type", class.into()),
        ("message", public_message(error).into()),
    ])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_reads_its_own_errors() {
        let full = PredictError::new(ErrorCode::Overloaded, "all places are taken");
        let wrong = PredictError::invalid("no such column");
        let status = to_status(&full, None, Engine::ArrowUdf);
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(
            crate::status::from_status(status).code,
            ErrorCode::Overloaded
        );
        assert!(to_status(&full, None, Engine::Airport).details().is_empty());
        let status = to_status(&wrong, None, Engine::Airport);
        let details = String::from_utf8_lossy(status.details()).into_owned();
        assert!(details.contains("InvalidInputException"), "{details}");
        assert!(details.contains("no such column"), "{details}");
    }
}
