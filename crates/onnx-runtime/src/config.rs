//! The knobs of local models.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::graph::GraphSummary;

/// Where sessions run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Device {
    /// CUDA where the library and the machine have it, else the CPU; which one is logged.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// CUDA; loading fails without it.
    Cuda,
}

impl Device {
    /// The device of that name: `auto`, `cpu` or `cuda`.
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

/// The knobs of local models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnnxConfig {
    /// Where sessions run.
    pub device: Device,
    /// The first GPU of this worker, from 0.
    pub gpu: i32,
    /// How many GPUs models are spread over in turn, from `gpu` on.
    pub gpus: u16,
    /// Threads of one session. 0 chooses by the model's size: small models are fastest, and
    /// cheapest, with one; large ones want every core.
    pub threads: usize,
    /// Sessions of one replica of a graph or a text encoder, which run side by side; each holds
    /// the weights. At most [`OnnxConfig::MAX_INSTANCES`]. 0 chooses: one, but for small text
    /// encoders on a CPU, which have one for each core or so.
    pub instances: usize,
    /// Generations of one replica that decode together.
    pub slots: usize,
    /// The longest context in tokens, prompt and answer; `None` means what the model allows.
    /// Memory for the KV cache grows with `slots` × this, as it is used.
    pub max_context: Option<usize>,
    /// Whether a prompt takes over what an earlier one with the same beginning left in the KV
    /// cache. How soon an answer begins then tells what others have asked before.
    pub prefix_reuse: bool,
    /// Whether decoders with a shared KV cache run their decode steps as CUDA graphs, on a GPU.
    pub cuda_graphs: bool,
    /// Tensor predictions of one replica that are taken at once; each of its sessions runs one after
    /// the other.
    pub tensor_streams: usize,
    /// The most rows of one tensor batch.
    pub max_rows: usize,
    /// How long one batch of tensors, one run of a text encoder, or one step of a decoder may take;
    /// then it is stopped.
    pub run_timeout: Duration,
    /// Bytes that the runs of all sessions of a process may take at once on a CPU, beside the
    /// weights; `None` means as many as the machine has. The first model's holds for the process.
    #[serde(default)]
    pub memory_limit: Option<u64>,
}

impl OnnxConfig {
    /// The most sessions of one replica.
    pub const MAX_INSTANCES: usize = 64;

    /// Bytes of the weights of all of a replica's sessions, each of which has the graph's.
    pub fn weights(&self, graph: &GraphSummary) -> u64 {
        let one = self.weights_of_session(graph);
        one.saturating_mul(self.instances.max(1) as u64)
    }

    /// Bytes of the weights of one session. A CPU computes in 32 bits: it keeps what the file has
    /// in 16 in both.
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
