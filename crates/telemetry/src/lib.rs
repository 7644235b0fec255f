//! Logs, metrics and traces of every node. Only this crate uses `prometheus-client`. Its metric
//! names are documented in `docs/reference/metrics.md`; a test compares both.

mod logging;
mod metrics;
pub mod otlp;
mod stream;

pub use logging::{LogFormat, LoggingError, init_logging};
pub use metrics::{Metrics, ResumeCounts, WorkerCounts};
pub use stream::StreamRecord;
