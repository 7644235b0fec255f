//! Conversions of errors between coordinators that hold streams: `Refusal` ⇄ [`PredictError`].

use volley_types::{ErrorCode, PredictError};

use crate::predict_command::{error_from_wire, error_to_wire};
use crate::streams::v1 as wire;

/// Converts an error to the wire.
#[must_use]
pub fn refusal_to_wire(error: &PredictError) -> wire::Refusal {
    wire::Refusal {
        detail: Some(error_to_wire(error, None)),
        message: error.message.clone(),
    }
}

/// Converts an error from the wire. An unknown code becomes `Unavailable`.
#[must_use]
pub fn refusal_from_wire(refusal: wire::Refusal) -> PredictError {
    let wire::Refusal { detail, message } = refusal;
    let known = detail.and_then(|detail| error_from_wire(&detail, message.clone()));
    known.unwrap_or_else(|| PredictError::new(ErrorCode::Unavailable, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_survives_and_an_unknown_one_is_unavailable() {
        for code in ErrorCode::ALL {
            let error = PredictError::new(code, "why");
            let back = refusal_from_wire(refusal_to_wire(&error));
            assert_eq!((back.code, back.message.as_str()), (code, "why"));
        }
        let bare = wire::Refusal {
            detail: None,
            message: "why".to_owned(),
        };
        assert_eq!(refusal_from_wire(bare).code, ErrorCode::Unavailable);
    }
}
