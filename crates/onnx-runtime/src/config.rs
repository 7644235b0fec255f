//! Configuration of local models.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::graph::GraphSummary;

/// Where sessions run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Device {
    /// CUDA if the library and the machine support it, else the CPU. The choice is logged.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// CUDA; loading fails without it.
    Cuda,
}

impl Device {
    /// Parses a device name: `auto`, `cpu` or `cuda`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "auto" => Some(Self::Auto),
            "cpu" => Some(Self::Cpu),
            "cuda" => Some(Self::Cuda),
            _ => None,
        }
    }
}

/// Configuration of local models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnnxConfig {
    /// Where sessions run.
    pub device: Device,
    /// The first GPU of this worker, from 0.
    pub gpu: i32,
    /// Number of GPUs, from `gpu` on, over which models are distributed in turn.
    pub gpus: u16,
    /// Threads of one session. 0 chooses by the model's size: small models are fastest, and
    /// cheapest, with one thread; large models use every core.
    pub threads: usize,
    /// Concurrent sessions of one replica of a graph or a text encoder. Each session holds its own
    /// copy of the weights. At most [`OnnxConfig::MAX_INSTANCES`]. 0 chooses: one, except for small
    /// text encoders on a CPU, which get about one for each core.
    pub instances: usize,
    /// Maximum number of generations of one replica that decode together.
    pub slots: usize,
    /// Maximum context in tokens, prompt and answer together; `None` means the model's own limit.
    /// The KV cache's memory is proportional to `slots` × `max_context`, and is taken as it is
    /// used.
    pub max_context: Option<usize>,
    /// Whether a prompt reuses the KV cache of an earlier prompt with the same prefix. The time to
    /// the first token then reveals which prefixes other callers have sent.
    pub prefix_reuse: bool,
    /// Whether decoders with a shared KV cache on a GPU run their decode steps as CUDA graphs.
    pub cuda_graphs: bool,
    /// Maximum number of concurrent tensor predictions of one replica. Each of its sessions runs
    /// one batch at a time.
    pub tensor_streams: usize,
    /// Maximum number of rows of one tensor batch.
    pub max_rows: usize,
    /// Time limit of one tensor batch, one run of a text encoder, or one step of a decoder. A run
    /// that exceeds it is stopped.
    pub run_timeout: Duration,
    /// Maximum bytes that the CPU runs of all sessions of a process may use together, in addition
    /// to the weights; `None` means no limit. The first model's value applies to the whole process.
    #[serde(default)]
    pub memory_limit: Option<u64>,
}

impl OnnxConfig {
    /// Maximum number of sessions of one replica.
    pub const MAX_INSTANCES: usize = 64;

    /// Bytes of the weights of all sessions of a replica; each session has its own copy.
    pub fn weights(&self, graph: &GraphSummary) -> u64 {
        let one = self.weights_of_session(graph);
        one.saturating_mul(self.instances.max(1) as u64)
    }

    /// Bytes of the weights of one session. A CPU computes in 32 bits, so it keeps 16-bit weights
    /// in both forms.
    pub fn weights_of_session(&self, graph: &GraphSummary) -> u64 {
        let widened = match self.device {
            Device::Cuda => 0,
            Device::Cpu | Device::Auto => graph.half_bytes.saturating_mul(2),
        };
        graph.bytes.saturating_add(widened)
    }
}

impl Default for OnnxConfig {
    fn default() -> Self {
        Self {
            device: Device::default(),
            gpu: 0,
            gpus: 1,
            threads: 0,
            instances: 0,
            slots: 32,
            max_context: None,
            prefix_reuse: true,
            cuda_graphs: false,
            tensor_streams: 32,
            max_rows: 65_536,
            run_timeout: Duration::from_secs(300),
            memory_limit: None,
        }
    }
}
