//! The keys of a worker's file. `docs/reference/configuration.md` is generated from the comments:
//! the last line of one gives the key's default, where it has one.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use super::artifacts;
use crate::config::otlp::OtlpSection;
use crate::config::security::WorkerSection;
use crate::config::{Count, Size, Span};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) node: Node,
    pub(super) listen: Listen,
    pub(super) cluster: Cluster,
    #[serde(default)]
    pub(super) limits: Limits,
    #[serde(default)]
    pub(super) onnx: Onnx,
    #[serde(default)]
    pub(super) remote: Remote,
    #[serde(default)]
    pub(super) security: WorkerSection,
    #[serde(default)]
    pub(super) artifacts: artifacts::Section,
    pub(super) otlp: Option<OtlpSection>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Node {
    /// The worker's name, unique in the cluster and the same after a restart: 1 to 128 characters
    /// of `[A-Za-z0-9._-]`.
    pub(super) id: String,
    /// Labels for placement, such as `zone` or `device`.
    #[serde(default)]
    pub(super) labels: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Listen {
    /// Address that serves predictions to coordinators.
    pub(super) flight: String,
    /// Address that serves health and metrics.
    pub(super) http: String,
    /// Address at which coordinators reach `flight`. Required if `flight` listens on every address.
    /// Default: the value of `flight`
    pub(super) advertise: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cluster {
    /// Internal addresses of all coordinators. They need not be running yet.
    pub(super) coordinators: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Limits {
    /// Requests that may wait for one replica. More are rejected with 429.
    /// Default: `256`
    pub(super) queue_per_replica: Option<Count>,
    /// How long a request may wait there before it is rejected with 429.
    /// Default: `"1m"`
    pub(super) queue_timeout: Option<Span>,
    /// Models that are loaded at the same time.
    /// Default: `2`
    pub(super) concurrent_loads: Option<Count>,
    /// Memory for all models together. A model that does not fit is not loaded. The default is
    /// computed from the machine's memory, or from the limit of the control group if that is lower.
    /// Default: four fifths of the memory
    pub(super) memory_budget: Option<Size>,
    /// Time to load one model. Loading that takes longer fails.
    /// Default: `"10m"`
    pub(super) load_timeout: Option<Span>,
    /// Flight calls that may run at the same time, over all replicas.
    /// Default: `8192`
    pub(super) max_exchanges: Option<Count>,
    /// Memory for the messages of all Flight calls, each from its first byte until its rows are taken.
    /// What does not fit is rejected with 429.
    /// Default: `"2GiB"`
    pub(super) max_inflight_body_bytes: Option<Size>,
    /// Interval between two reports to each coordinator. Changes are reported immediately.
    /// Default: `"500ms"`
    pub(super) heartbeat_interval: Option<Span>,
    /// How long running streams may take to end after SIGTERM.
    /// Default: `"30s"`
    pub(super) drain_timeout: Option<Span>,
    /// How long the streams of a removed replica may take to end before they are aborted.
    /// Default: `"10m"`
    pub(super) unload_timeout: Option<Span>,
    /// A stream that is not read for this time is ended to free its slot. If the coordinators'
    /// `resume_window` is longer, raise this value too.
    /// Default: `"1m"`
    pub(super) write_stall: Option<Span>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Onnx {
    /// ONNX Runtime's shared library. Without this key, Volley uses the file that
    /// `VOLLEY_ONNXRUNTIME` names, then a file beside the executable, then `target/ort/` of the
    /// source tree.
    /// Default: located automatically
    pub(super) library: Option<PathBuf>,
    /// Where models run: `"auto"` (CUDA if it is available), `"cpu"` or `"cuda"`.
    /// Default: `"auto"`
    pub(super) device: Option<String>,
    /// First GPU to use with CUDA.
    /// Default: `0`
    pub(super) gpu: Option<i32>,
    /// Number of GPUs to use, starting with `gpu`. Models are assigned to them in turn.
    /// Default: `1`
    pub(super) gpus: Option<u16>,
    /// Threads of one session. 0 chooses by the size of the model: one thread per started 32 MiB of
    /// weights, at most one per core. Small models are fastest with one thread. Between two
    /// operators of a run, threads spin for 20 µs before they sleep; after the run they sleep
    /// immediately. Versions of ONNX Runtime without this limit spin until the run ends.
    /// Default: `0`
    pub(super) threads: Option<usize>,
    /// Sessions of one replica of a graph or text encoder that run side by side, at most 64. Each
    /// session holds the weights, and gets its share of the cores if `threads` is 0. By default, a
    /// graph has one session. A text encoder on a CPU with `threads` 0 has as many as make it
    /// faster.
    /// Default: chosen by the model
    pub(super) instances: Option<Count>,
    /// Generations of one replica that decode together.
    /// Default: `32`
    pub(super) slots: Option<Count>,
    /// Longest context in tokens. Memory for the KV cache grows with `slots` times this value.
    /// Default: the model's limit
    pub(super) max_context: Option<Count>,
    /// Whether a prompt reuses the KV cache of an earlier prompt with the same prefix.
    /// Default: `true`
    pub(super) prefix_reuse: Option<bool>,
    /// Whether decoders with a shared KV cache run their decode steps as CUDA graphs. Needs CUDA.
    /// Default: `false`
    pub(super) cuda_graphs: Option<bool>,
    /// Tensor predictions of one replica that are accepted at the same time.
    /// Default: `32`
    pub(super) tensor_streams: Option<Count>,
    /// Largest number of rows in one tensor batch.
    /// Default: `65536`
    pub(super) max_rows: Option<Count>,
    /// Time for one batch of tensors, one run of a text encoder, or one step of a decoder (a token
    /// for each generation, or a chunk of a prompt). A run that takes longer is stopped, and its
    /// callers get `deadline_exceeded`.
    /// Default: `"5m"`
    pub(super) run_timeout: Option<Span>,
    /// Which models run in processes of their own: `"auto"` (models from a URL; all others are
    /// first loaded and tried in a separate process), `"process"` (all), `"fetched"` (models from a
    /// URL), `"probe"` (none, but each is first loaded and tried in a separate process), `"none"`.
    /// Default: `"auto"`
    pub(super) isolation: Option<String>,
    /// Memory that the process of one model may use. There is no limit if `device` is `"cuda"`.
    /// Default: the machine's memory
    pub(super) process_memory: Option<Size>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Remote {
    /// Streams of one replica of a remote model.
    /// Default: `8192`
    pub(super) max_streams: Option<Count>,
    /// Time to connect to a server.
    /// Default: `"10s"`
    pub(super) connect_timeout: Option<Span>,
    /// Time from the request to the headers of the response, and from there to the first event.
    /// Default: `"1m"`
    pub(super) first_byte_timeout: Option<Span>,
    /// Longest silence within a response.
    /// Default: `"1m"`
    pub(super) stall_timeout: Option<Span>,
    /// Whether servers at private and loopback addresses may be called. Link-local addresses, at
    /// which clouds serve machine credentials, are always blocked.
    /// Default: `true`
    pub(super) allow_private: Option<bool>,
    /// The only hosts that may be called: names, addresses, or `"*.example.org"` for all names
    /// below a domain.
    /// Default: every host
    pub(super) allowed_hosts: Option<Vec<String>>,
}
