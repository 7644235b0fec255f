//! Evaluates the workers' checks of a connector before it is created or changed. Pure.

use volley_types::{ConnectorCheck, ErrorCode, PredictError};

/// Maximum number of workers that a message names.
const NAMED: usize = 5;

/// Returns warnings. `again` describes the next step after the fault is fixed.
///
/// # Errors
/// `InvalidInput` if the check failed on all workers, or if the test call failed. The message has
/// the reason and the workers that are affected. A timeout keeps the code `DeadlineExceeded`.
pub(super) fn verdict(
    checks: &[ConnectorCheck],
    test: bool,
    again: &str,
) -> Result<Vec<String>, PredictError> {
    if checks.is_empty() {
        let untested = if test { " and was not tested" } else { "" };
        return Ok(vec![format!(
            "no worker is live: the connector's credential was not checked{untested}"
        )]);
    }
    let failed = checks.iter().filter_map(|it| {
        let error = it.outcome.as_ref().err()?;
        Some((it.worker.as_str(), error))
    });
    let failed: Vec<_> = failed.collect();
    // The first worker made the test call.
    let tested = checks.first().and_then(|it| it.outcome.as_ref().err());
    let (Some((_, first)), Some(count)) = (failed.first(), std::num::NonZero::new(failed.len()))
    else {
        return Ok(Vec::new());
    };
    let names: Vec<_> = failed.iter().map(|(worker, _)| *worker).collect();
    let more = count.get().saturating_sub(NAMED);
    let names = names[..count.get().min(NAMED)].join(", ");
    let names = match more {
        0 => names,
        more => format!("{names} and {more} more"),
    };
    if failed.len() == checks.len() || (test && tested.is_some()) {
        let reason = tested.filter(|_| test).unwrap_or(first);
        let mut error = PredictError::invalid(format!(
            "{}; it fails on worker {names}; fix it, and {again}",
            reason.message
        ));
        error.code = match reason.code {
            ErrorCode::DeadlineExceeded => ErrorCode::DeadlineExceeded,
            _ => ErrorCode::InvalidInput,
        };
        return Err(error);
    }
    Ok(vec![format!("{}; on worker {names}", first.message)])
}

#[cfg(test)]
mod tests;
