//! The end of a response, by its status. Pure.

use volley_provider_kit::calls::ToolCallAccumulator;
use volley_provider_kit::step::Delta;
use volley_types::FinishReason;

/// Sets the finish reason by the status, and by the reason of an incomplete response.
pub(super) fn ended(
    delta: &mut Delta,
    status: Option<&str>,
    why: Option<&str>,
    calls: &ToolCallAccumulator,
) {
    match (status, why) {
        (None | Some("completed" | "incomplete"), Some("content_filter")) => {
            delta.finish_reason = Some(FinishReason::ContentFilter);
        }
        (None | Some("completed"), Some(_)) | (Some("incomplete"), _) => {
            delta.finish_reason = Some(FinishReason::Length);
        }
        (None | Some("completed"), None) => {
            delta.finish_reason = calls.any().then_some(FinishReason::ToolCalls);
        }
        // Cancelled, queued, or of a later version.
        (Some(status), _) => delta.finish(status, None),
    }
}
