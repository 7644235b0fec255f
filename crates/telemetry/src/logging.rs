//! The log: one line per event on standard error, as text or as JSON.

use std::fmt;
use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Human-readable text.
    #[default]
    Text,
    /// One JSON object per line, for log collectors.
    Json,
}

/// An error of [`init_logging`].
#[derive(Debug)]
pub struct LoggingError(String);

impl fmt::Display for LoggingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "set up logging: {}", self.0)
    }
}

impl std::error::Error for LoggingError {}

/// Starts logging for the whole process. `filter` has the syntax of `RUST_LOG`, for example
/// `info,volley_worker=debug`.
///
/// # Errors
/// When `filter` does not parse, or when logging was already started.
pub fn init_logging(format: LogFormat, filter: &str) -> Result<(), LoggingError> {
    let filter = EnvFilter::try_new(filter).map_err(|error| LoggingError(error.to_string()))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Text => builder.compact().try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| LoggingError(error.to_string()))
}
