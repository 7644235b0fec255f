//! The keys of a worker's file. `docs/reference/configuration.md` is generated from the comments:
//! the last line of one gives the key's default, where it has one.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::artifacts::ArtifactsSection;
use crate::otlp::OtlpSection;
use crate::security::WorkerSecurity;
use crate::values::{Count, Size, TimeSpan};
use crate::version::FormatVersion;

/// The file of a worker.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerFile {
    /// Version of the file's format. Write it as the first line of the file.
    pub version: FormatVersion,
    /// The worker itself.
    pub node: NodeSection,
    /// Addresses.
    pub listen: ListenSection,
    /// The coordinators.
    pub cluster: ClusterSection,
    /// Memory, loading and unloading.
    #[serde(default)]
    pub models: ModelsSection,
    /// Requests that wait for a replica.
    #[serde(default)]
    pub queue: QueueSection,
    /// Calls of coordinators and Flight clients.
    #[serde(default)]
    pub flight: FlightSection,
    /// What the node does after SIGTERM.
    #[serde(default)]
    pub shutdown: ShutdownSection,
    /// Models of ONNX Runtime.
    #[serde(default)]
    pub onnx: OnnxSection,
    /// Python models.
    #[serde(default)]
    pub python: PythonSection,
    /// Models at other servers.
    #[serde(default)]
    pub remote: RemoteSection,
    /// Keys and certificates.
    #[serde(default)]
    pub security: WorkerSecurity,
    /// Models that are registered by URL.
    #[serde(default)]
    pub artifacts: ArtifactsSection,
    /// Traces and metrics for a collector.
    pub otlp: Option<OtlpSection>,
}

/// The section `[node]`: the worker itself.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSection {
    /// The worker's name, unique in the cluster and the same after a restart: 1 to 128 characters
    /// of `[A-Za-z0-9._-]`.
    pub id: String,
    /// Labels for placement, such as `zone` or `device`.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// The section `[listen]`: addresses.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ListenSection {
    /// Address that serves predictions to coordinators.
    pub flight: String,
    /// Address that serves health and metrics.
    pub http: String,
    /// Address at which coordinators reach `flight`. Required if `flight` listens on every address.
    /// Default: the value of `flight`
    pub advertise: Option<String>,
}

/// The section `[cluster]`: the coordinators.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSection {
    /// Internal addresses of all coordinators. They need not be running yet.
    pub coordinators: Vec<String>,
    /// Interval between two reports to each coordinator. Changes are reported immediately.
    /// Default: `"500ms"`
    pub heartbeat_interval: Option<TimeSpan>,
}

/// The section `[models]`: memory, loading and unloading.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelsSection {
    /// Memory for all models together. The default is computed from the machine's memory, or from
    /// the limit of the control group if that is lower.
    /// Beyond: A model that does not fit is not loaded.
    /// Default: four fifths of the memory
    pub memory_budget: Option<Size>,
    /// Models that are loaded at the same time.
    /// Beyond: Further loads wait.
    /// Default: `2`
    pub max_concurrent_loads: Option<Count>,
    /// Time to load one model.
    /// Beyond: After it, loading fails.
    /// Default: `"10m"`
    pub load_timeout: Option<TimeSpan>,
    /// How long the streams of a removed replica may take to end.
    /// Beyond: After it, they are aborted.
    /// Default: `"10m"`
    pub unload_timeout: Option<TimeSpan>,
}

/// The section `[queue]`: requests that wait for a replica.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct QueueSection {
    /// Requests that may wait for one replica.
    /// Beyond: Further ones are rejected with 429.
    /// Default: `256`
    pub max_per_replica: Option<Count>,
    /// How long a request may wait there.
    /// Beyond: After it, the request is rejected with 429.
    /// Default: `"1m"`
    pub timeout: Option<TimeSpan>,
}

/// The section `[flight]`: calls of coordinators and Flight clients.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct FlightSection {
    /// Flight calls that may run at the same time, over all replicas.
    /// Beyond: Further ones are rejected with `overloaded`, over REST 429.
    /// Default: `8192`
    pub max_concurrent_streams: Option<Count>,
    /// Memory for the messages of all calls, each from its first byte until its rows are taken.
    /// Beyond: Further ones are rejected with `overloaded`, over REST 429.
    /// Default: `"2GiB"`
    pub max_body_memory: Option<Size>,
    /// Time that a stream may not be read. If the coordinators' `resume.window` is longer, raise
    /// this value too.
    /// Beyond: After it, the stream is ended to free its slot.
    /// Default: `"1m"`
    pub write_timeout: Option<TimeSpan>,
}

/// The section `[shutdown]`: what the node does after SIGTERM.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShutdownSection {
    /// How long running streams may take to end after SIGTERM.
    /// Beyond: After it, streams that still run are aborted; generations continue on another
    /// replica.
    /// Default: `"30s"`
    pub drain_timeout: Option<TimeSpan>,
}

/// The section `[onnx]`: models of ONNX Runtime.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct OnnxSection {
    /// ONNX Runtime's shared library. Without this key, Volley uses the file that
    /// `VOLLEY_ONNXRUNTIME` names, then a file beside the executable, then one in `../lib/volley` or
    /// `../lib`, then `target/ort/` of the source tree.
    /// Default: located automatically
    pub library: Option<PathBuf>,
    /// Where models run: `"auto"` (CUDA if it is available), `"cpu"` or `"cuda"`.
    /// Default: `"auto"`
    pub device: Option<String>,
    /// First GPU to use with CUDA.
    /// Default: `0`
    pub first_gpu: Option<i32>,
    /// Number of GPUs to use, starting with `first_gpu`. Models are assigned to them in turn.
    /// Default: `1`
    pub gpu_count: Option<u16>,
    /// Threads of one session. 0 chooses by the size of the model: one thread per started 32 MiB of
    /// weights, at most one per core. Small models are fastest with one thread. Between two
    /// operators of a run, threads spin for 20 µs before they sleep; after the run they sleep
    /// immediately. Versions of ONNX Runtime without this limit spin until the run ends.
    /// Default: `0`
    pub threads: Option<usize>,
    /// Sessions of one replica of a graph or text encoder that run side by side, at most 64. Each
    /// session holds the weights, and gets its share of the cores if `threads` is 0. By default, a
    /// graph has one session. A text encoder on a CPU with `threads` 0 has as many as make it
    /// faster.
    /// Default: chosen by the model
    pub instances: Option<Count>,
    /// Generations of one replica that decode together.
    /// Beyond: Further ones wait in the queue.
    /// Default: `32`
    pub slots: Option<Count>,
    /// Longest context in tokens. Memory for the KV cache grows with `slots` times this value.
    /// Beyond: A longer prompt is rejected with 400; an answer that becomes longer ends with the
    /// reason `length`.
    /// Default: the model's limit
    pub max_context: Option<Count>,
    /// Whether a prompt reuses the KV cache of an earlier prompt with the same prefix.
    /// Default: `true`
    pub prefix_reuse: Option<bool>,
    /// Whether decoders with a shared KV cache run their decode steps as CUDA graphs. Needs CUDA.
    /// Default: `false`
    pub cuda_graphs: Option<bool>,
    /// Tensor predictions of one replica that are accepted at the same time.
    /// Beyond: Further ones wait in the queue.
    /// Default: `32`
    pub tensor_streams: Option<Count>,
    /// Largest number of rows in one tensor batch.
    /// Beyond: A larger batch is rejected with 413.
    /// Default: `65536`
    pub max_rows: Option<Count>,
    /// Time for one batch of tensors, one run of a text encoder, or one step of a decoder (a token
    /// for each generation, or a chunk of a prompt).
    /// Beyond: After it, the run is stopped, and its callers get `deadline_exceeded`.
    /// Default: `"5m"`
    pub run_timeout: Option<TimeSpan>,
    /// Which models run in processes of their own: `"auto"` (models from a URL; all others are
    /// first loaded and tried in a separate process), `"process"` (all), `"fetched"` (models from a
    /// URL), `"probe"` (none, but each is first loaded and tried in a separate process), `"none"`.
    /// Default: `"auto"`
    pub isolation: Option<String>,
    /// Memory that the process of one model may use. There is no limit if `device` is `"cuda"`.
    /// Beyond: Beyond it, the request ends with `too_large`, or the process ends and is started
    /// again.
    /// Default: twice `models.memory_budget` and 256 MiB, at most the machine's memory
    pub process_memory: Option<Size>,
}

/// The section `[python]`: Python models.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct PythonSection {
    /// Whether Python models may be loaded. Their code runs as the worker's user, so whoever may
    /// register models runs code on this machine.
    /// Default: `false`
    pub enabled: Option<bool>,
    /// Interpreter of models that neither name one nor have a virtual environment.
    /// Default: `"python3"`
    pub interpreter: Option<PathBuf>,
    /// Directory of the environments that are built from a model's packages, one for each set of
    /// packages.
    /// Default: `volley-python-environments` in the directory for temporary files
    pub environments_dir: Option<PathBuf>,
    /// Directory with wheels, besides the directory `wheels` of a model.
    /// Default: none
    pub wheels_dir: Option<PathBuf>,
    /// Whether packages come from wheels only, and from no package index.
    /// Default: `false`
    pub offline: Option<bool>,
    /// Memory that a process of a model may use together with all that it starts, unless the model
    /// sets `memory_limit_bytes`.
    /// Beyond: An allocation fails in Python with `MemoryError`, or the process ends and is started
    /// again.
    /// Default: four fifths of the machine's memory
    pub process_memory: Option<Size>,
    /// Processes and threads that a process of a model may have together with all that it starts,
    /// unless the model sets `task_limit`.
    /// Beyond: All of them are killed, and the process is started again.
    /// Default: `1024`
    pub process_tasks: Option<Count>,
    /// Restriction of every model's code: `none`, `files` (files are read-only) or
    /// `files_and_network` (and no network). A model may have a stricter one. A worker whose kernel
    /// cannot enforce it loads no Python models.
    /// Default: `"none"`
    pub sandbox: Option<String>,
    /// Files and directories that no model may open, besides those that this configuration names
    /// for keys, certificates and fetched models.
    /// Default: none
    pub hidden_paths: Option<Vec<PathBuf>>,
    /// GPUs for models, as `CUDA_VISIBLE_DEVICES` names them: indexes or UUIDs. Each process gets
    /// as many as the model's parameter `gpus`, the least used first. An empty list gives none.
    /// Default: the GPUs that the worker may use
    pub gpus: Option<Vec<String>>,
}

/// The section `[remote]`: models at other servers.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RemoteSection {
    /// Streams of one replica of a remote model.
    /// Beyond: Further ones wait in the queue.
    /// Default: `8192`
    pub max_streams: Option<Count>,
    /// Time to connect to a server.
    /// Beyond: After it, the request fails with `unavailable`, and another worker may try.
    /// Default: `"10s"`
    pub connect_timeout: Option<TimeSpan>,
    /// Time from the request to the headers of the response, and from there to the first event.
    /// Beyond: After it, the request fails with `upstream_timeout`.
    /// Default: `"1m"`
    pub first_byte_timeout: Option<TimeSpan>,
    /// Longest silence within a response.
    /// Beyond: After it, the request fails with `upstream_timeout`.
    /// Default: `"1m"`
    pub stall_timeout: Option<TimeSpan>,
    /// Whether servers at private and loopback addresses may be called. Link-local addresses, at
    /// which clouds serve machine credentials, are always blocked.
    /// Default: `true`
    pub allow_private: Option<bool>,
    /// The only hosts that may be called: names, addresses, or `"*.example.org"` for all names
    /// below a domain.
    /// Default: every host
    pub allowed_hosts: Option<Vec<String>>,
}
