//! Failures and warnings in rows: the terminal row of a failed answer, while other answers of the
//! request continue, its conversion to an error, and the warning in the details of a row.

use std::time::Duration;

use super::{FinishReason, GenerationChunk, GenerationRow};
use crate::details::{Details, WARNING};
use crate::error::{ErrorCode, ErrorOrigin, ErrorReason, PredictError};

impl GenerationChunk {
    /// The last row of a failed answer, with error code, reason, retry delay and message.
    #[must_use]
    pub fn failed(item: u32, choice: u32, error: PredictError) -> Self {
        let retry_after = error.retry_after.map(|after| after.as_millis());
        let details = Details {
            reason: error.reason.map(|reason| reason.as_str().to_owned()),
            retry_after_ms: retry_after.and_then(|ms| u64::try_from(ms).ok()),
            ..Details::default()
        };
        Self {
            item,
            choice,
            finish_reason: Some(FinishReason::Error),
            details: details.to_json(),
            error: Some((error.code.as_str().to_owned(), error.message)),
            last: true,
            ..Self::default()
        }
    }
}

impl GenerationRow<'_> {
    /// The error of an answer that failed.
    #[must_use]
    pub fn failure(&self) -> Option<PredictError> {
        let (code, message) = self.error()?;
        let code = ErrorCode::from_name(code).unwrap_or(ErrorCode::Internal);
        let mut error = PredictError::new(code, message).with_origin(ErrorOrigin::Model);
        let details = self.details().map(Details::from_json).unwrap_or_default();
        error.reason = details.reason.as_deref().and_then(ErrorReason::from_name);
        error.retry_after = details.retry_after_ms.map(Duration::from_millis);
        Some(error)
    }

    /// The warning about the translation of the request, see [`WARNING`].
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let details = self.details().filter(|json| json.contains(WARNING))?;
        let fields = Details::from_json(details).fields?;
        fields.get(WARNING)?.as_str().map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::super::GenerationChunks;
    use super::*;

    #[test]
    fn an_error_is_the_same_behind_a_row() {
        let error =
            PredictError::context_length("too long").with_retry_after(Duration::from_millis(1_500));
        let batch = GenerationChunks::single(&GenerationChunk::failed(2, 1, error));
        let row = GenerationRow::rows(&batch).unwrap().next().unwrap();
        assert_eq!((row.item(), row.choice(), row.last()), (2, 1, true));
        let read = row.failure().unwrap();
        assert_eq!(read.code, ErrorCode::InvalidInput);
        assert_eq!(read.message, "too long");
        assert_eq!(read.reason, Some(ErrorReason::ContextLength));
        assert_eq!(read.retry_after, Some(Duration::from_millis(1_500)));
        let plain = GenerationChunk::failed(0, 0, PredictError::invalid("bad"));
        assert_eq!(plain.details, None);
    }

    #[test]
    fn a_warning_is_in_the_details() {
        let warning = |details: Option<&str>| {
            let chunk = GenerationChunk {
                details: details.map(str::to_owned),
                ..GenerationChunk::default()
            };
            let batch = GenerationChunks::single(&chunk);
            let row = GenerationRow::rows(&batch).unwrap().next().unwrap();
            row.warning()
        };
        let warned = r#"{"fields":{"volley-warning":"moved"}}"#;
        assert_eq!(warning(Some(warned)).as_deref(), Some("moved"));
        for none in [None, Some("{}"), Some(r#"{"fields":{"volley-warning":1}}"#)] {
            assert_eq!(warning(none), None);
        }
    }
}
