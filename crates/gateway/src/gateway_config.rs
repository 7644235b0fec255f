//! Configuration of a coordinator's public interface.

use std::time::Duration;

use volley_dialect_openai::responses::store::ResponsesConfig;
use volley_http_edge::config::EdgeConfig;

/// Configuration of a coordinator's public interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ApiConfig {
    /// Limits of connections, bodies and times.
    pub edge: EdgeConfig,
    /// Limits of resumable streams.
    pub resume: ResumeConfig,
    /// Limits of stored responses.
    pub responses: ResponsesConfig,
    /// Whether clients on this machine may register regions of system shared memory.
    pub shared_memory: bool,
}

impl From<EdgeConfig> for ApiConfig {
    fn from(edge: EdgeConfig) -> Self {
        Self {
            edge,
            ..Self::default()
        }
    }
}

/// Limits of resumable streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeConfig {
    /// Time for which a stream without a reader is kept, also after its end.
    pub window: Duration,
    /// Maximum buffer of one stream in bytes; half of it may be unread.
    pub stream_bytes: usize,
    /// Maximum buffers of one tenant's streams in bytes.
    pub tenant_bytes: usize,
    /// Maximum buffers of all streams together in bytes.
    pub total_bytes: usize,
}

impl Default for ResumeConfig {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(60),
            stream_bytes: 4 << 20,
            tenant_bytes: 64 << 20,
            total_bytes: 256 << 20,
        }
    }
}
