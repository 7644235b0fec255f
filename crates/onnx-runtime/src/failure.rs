//! Maps errors of ONNX Runtime to [`ErrorCode`]s. Pure.

use ort::ErrorCode as OrtCode;
use volley_types::{ErrorCode, ErrorOrigin, PredictError};

use crate::session;

/// The error for a run that ONNX Runtime ended with `code` and `message`. `varied` is whether the
/// inputs vary in something that the declared types and shapes leave open: a dynamic dimension, or
/// integers and texts, which are often indices.
///
/// A failure on fixed shapes of plain numbers is the model's own defect. The caller can fix any
/// other failure by sending different inputs.
pub fn classify(code: OrtCode, message: &str, varied: bool) -> PredictError {
    let error = if message.contains("terminate flag") {
        PredictError::new(ErrorCode::Cancelled, "the run was stopped")
    } else if session::lacks_memory(message) {
        PredictError::new(
            ErrorCode::TooLarge,
            "the run needs more memory than the worker has; send fewer rows or smaller tensors",
        )
    } else if code == OrtCode::InvalidArgument || (varied && is_general(code)) {
        let operator = operator(message).map_or_else(String::new, |name| format!("'s {name} step"));
        PredictError::invalid(format!(
            "the model{operator} failed on these inputs; check their shapes and values"
        ))
    } else {
        PredictError::new(
            ErrorCode::Internal,
            "the model failed on inputs of the types and shapes that it declares",
        )
    };
    error
        .with_origin(ErrorOrigin::Model)
        .with_source(message.to_owned())
}

/// Whether `code` is one that operators use to reject shapes and values; ONNX Runtime has no
/// specific code for this.
fn is_general(code: OrtCode) -> bool {
    matches!(code, OrtCode::GenericFailure | OrtCode::RuntimeException)
}

/// The operator named in a message: `… while running Add node. …`.
fn operator(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once("while running ")?;
    let (name, _) = rest.split_once(" node")?;
    let is_name = |name: &str| {
        (1..=64).contains(&name.len())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    is_name(name).then_some(name)
}

/// An `Internal` error of the model itself, with the library's message as its source.
pub fn internal(message: &str, source: impl Into<String>) -> PredictError {
    PredictError::internal(message, source.into()).with_origin(ErrorOrigin::Model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_caller_can_mend_is_the_callers_and_no_path_is_told() {
        let add = "Non-zero status code returned while running Add node. Name:'' Status Message: \
                   /build/element_wise_ops.h:563 axis == 1 || axis == largest was false";
        let error = classify(OrtCode::GenericFailure, add, true);
        assert_eq!(error.code, ErrorCode::InvalidInput);
        assert!(error.message.contains("'s Add step"), "{}", error.message);
        assert!(!error.message.contains("/build"));
        assert!(error.chain().contains("/build"));

        let gather = "indices element out of data bounds";
        let error = classify(OrtCode::InvalidArgument, gather, false);
        assert_eq!(error.code, ErrorCode::InvalidInput);
        let error = classify(OrtCode::GenericFailure, add, false);
        assert_eq!(error.code, ErrorCode::Internal);
        let error = classify(OrtCode::NotImplemented, "no kernel", true);
        assert_eq!(error.code, ErrorCode::Internal);
        assert_eq!(error.origin, ErrorOrigin::Model);
    }

    #[test]
    fn stops_and_memory_have_their_own_codes() {
        let stopped = "Exiting due to terminate flag being set to true.";
        let code = classify(OrtCode::GenericFailure, stopped, true).code;
        assert_eq!(code, ErrorCode::Cancelled);
        let memory = "Failed to allocate memory for requested buffer of size 17592186044416";
        let code = classify(OrtCode::GenericFailure, memory, false).code;
        assert_eq!(code, ErrorCode::TooLarge);
    }

    proptest::proptest! {
        #[test]
        fn any_message_is_classified_and_a_named_step_is_a_plain_name(message in ".*while running .* node.*") {
            let error = classify(OrtCode::GenericFailure, &message, true);
            proptest::prop_assert!(error.message.len() < 200);
            proptest::prop_assert!(error.message.is_ascii());
        }
    }
}
