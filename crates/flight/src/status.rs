//! [`PredictError`] ⇄ gRPC status. An error is classified only here, when it arrives.

use std::error::Error;

use prost::Message;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};
use volley_proto::predict::v1::ErrorDetail;
use volley_proto::predict_command::{error_from_wire, error_to_wire};
use volley_proto::status::{grpc_code, public_message};
use volley_types::{ErrorCode, PredictError, RequestId};

/// Arrow's C++ clients, including pyarrow, only forward the details to their caller if this trailer
/// is present, and only for errors of this class.
const ARROW_STATUS: &str = "x-arrow-status";
const ARROW_IO_ERROR: &str = "5";

/// The status of `error`: its public message, and the rest as an `ErrorDetail` in the details.
#[must_use]
pub fn to_status(error: &PredictError, request_id: Option<&RequestId>) -> Status {
    let message = public_message(error);
    status_of(grpc_code(error.code), message, details(error, request_id))
}

/// The bytes of the `ErrorDetail` of `error`.
pub(crate) fn details(error: &PredictError, request_id: Option<&RequestId>) -> Vec<u8> {
    error_to_wire(error, request_id).encode_to_vec()
}

/// A status whose details Arrow's C++ clients forward.
pub(crate) fn status_of(code: Code, message: impl Into<String>, details: Vec<u8>) -> Status {
    let mut status = Status::with_details(code, message, details.into());
    status
        .metadata_mut()
        .insert(ARROW_STATUS, MetadataValue::from_static(ARROW_IO_ERROR));
    status
}

/// Converts the status of a failed call to another node to an error.
///
/// A status with an `ErrorDetail` is that error. A status with a source comes from the transport:
/// the connection failed, regardless of the code. All others come from a peer without this
/// contract, or from the gRPC library, and are converted by code.
#[must_use]
pub fn from_status(status: Status) -> PredictError {
    if !status.details().is_empty()
        && let Ok(detail) = ErrorDetail::decode(status.details())
        && let Some(error) = error_from_wire(&detail, status.message())
    {
        // The node of the error has logged it.
        return error.logged();
    }
    if status.source().is_some() {
        return PredictError::new(
            ErrorCode::Unavailable,
            "the connection to the node that runs this model failed; try again",
        )
        .with_source(status);
    }
    let (code, message) = match status.code() {
        Code::InvalidArgument => (ErrorCode::InvalidInput, "the node rejected the request"),
        Code::NotFound => (ErrorCode::NotFound, "the node does not have this model"),
        Code::FailedPrecondition => (ErrorCode::NotDeployed, "the model is not deployed there"),
        Code::OutOfRange => (
            ErrorCode::TooLarge,
            "a message is over 16 MiB; send fewer rows in one batch",
        ),
        Code::ResourceExhausted => (ErrorCode::Overloaded, "the node is at its limit; try again"),
        Code::Unauthenticated => (ErrorCode::Unauthenticated, "the node requires a credential"),
        Code::PermissionDenied => (ErrorCode::PermissionDenied, "the node does not allow this"),
        Code::DeadlineExceeded => (ErrorCode::DeadlineExceeded, "the deadline has passed"),
        Code::Unimplemented => (
            ErrorCode::Unimplemented,
            "the node does not support this call",
        ),
        Code::Ok | Code::Cancelled | Code::Unknown | Code::Unavailable | Code::Aborted => (
            ErrorCode::Unavailable,
            "the node that runs this model ended the call; try again",
        ),
        Code::AlreadyExists | Code::Internal | Code::DataLoss => {
            (ErrorCode::Internal, "the node that runs this model failed")
        }
    };
    PredictError::new(code, message).with_source(status)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_code_survives_the_wire_with_its_message_and_advice() {
        for code in ErrorCode::ALL {
            let error =
                PredictError::new(code, "too näive").with_retry_after(Duration::from_secs(2));
            let back = from_status(to_status(&error, Some(&RequestId::random())));
            assert_eq!(
                (back.code, back.message.as_str(), back.retry_after),
                (code, "too näive", Some(Duration::from_secs(2)))
            );
        }
    }

    #[test]
    fn a_transport_failure_is_unavailable_whatever_its_code() {
        let status = Status::from_error(Box::new(std::io::Error::other("connection reset")));
        let error = from_status(status);
        assert_eq!(error.code, ErrorCode::Unavailable);
        assert!(!error.message.contains("reset"), "{}", error.message);
    }
}
