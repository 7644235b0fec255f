//! Logs, metrics and traces of every node. The only crate that names `prometheus-client`; the names
//! that it exports are documented in `docs/reference/metrics.md`, and a test holds the two together.

mod logging;
mod metrics;
pub mod otlp;
mod stream;

pub use logging::{LogFormat, LoggingError, init_logging};
pub use metrics::{Metrics, ResumeCounts, WorkerCounts};
pub use stream::StreamRecord;
