//! The keys of a coordinator's file. `docs/reference/configuration.md` is generated from the
//! comments: the last line of one gives the key's default, where it has one.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::otlp::OtlpSection;
use crate::security::CoordinatorSecurity;
use crate::values::{Count, Size, TimeSpan};
use crate::version::FormatVersion;

/// The file of a coordinator.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CoordinatorFile {
    /// Version of the file's format. Write it as the first line of the file.
    pub version: FormatVersion,
    /// The coordinator itself.
    pub node: NodeSection,
    /// Addresses.
    pub listen: ListenSection,
    /// Membership.
    pub cluster: ClusterSection,
    /// More listeners for gRPC.
    #[serde(default)]
    pub grpc: GrpcSection,
    /// Web pages.
    #[serde(default)]
    pub browser: BrowserSection,
    /// What one request may be, and how many may run.
    #[serde(default)]
    pub requests: RequestsSection,
    /// Connections to the listeners for REST and gRPC.
    #[serde(default)]
    pub http: HttpSection,
    /// Responses that are streamed.
    #[serde(default)]
    pub streams: StreamsSection,
    /// Buffers of resumable streams.
    #[serde(default)]
    pub resume: ResumeSection,
    /// Buffers of stored responses.
    #[serde(default)]
    pub stored_responses: StoredResponses,
    /// The choice of a replica for each request.
    #[serde(default)]
    pub routing: RoutingSection,
    /// Requests for models that were scaled to zero.
    #[serde(default)]
    pub activation: ActivationSection,
    /// When a worker is considered lost.
    #[serde(default)]
    pub liveness: LivenessSection,
    /// When replicas move to other workers.
    #[serde(default)]
    pub placement: PlacementSection,
    /// Everything that is registered.
    #[serde(default)]
    pub registry: RegistrySection,
    /// Consensus of the coordinators.
    #[serde(default)]
    pub raft: RaftSection,
    /// What the node does after SIGTERM.
    #[serde(default)]
    pub shutdown: ShutdownSection,
    /// Keys and certificates.
    #[serde(default)]
    pub security: CoordinatorSecurity,
    /// Addresses that connectors and models may name.
    #[serde(default)]
    pub egress: Egress,
    /// Files of models that come with a load.
    #[serde(default)]
    pub uploads: UploadsSection,
    /// Traces and metrics for a collector.
    pub otlp: Option<OtlpSection>,
}

/// The section `[node]`: the coordinator itself.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSection {
    /// The coordinator's number, unique in the cluster. A coordinator that lost its data returns
    /// with a new number.
    pub id: u64,
    /// Directory for this coordinator's copy of the registry and its audit log.
    pub data_dir: PathBuf,
    /// Availability zone of this coordinator. Requests prefer workers whose `zone` label has the
    /// same value.
    pub zone: Option<String>,
}

/// The section `[listen]`: addresses.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ListenSection {
    /// Address that serves REST, and gRPC in Triton's dialect.
    pub public: String,
    /// More addresses that serve the same as `public`, for clients that expect another port:
    /// Triton's REST port is 8000, the port of MLServer and KServe is 8080. Each address has its
    /// own `http.max_connections`.
    #[serde(default)]
    pub additional: Vec<String>,
    /// Address for administration. If it is set, only this address serves the routes that need
    /// the role `model-admin` or `cluster-admin`, and the other addresses answer them with 403.
    /// This address also serves all other routes.
    pub admin: Option<String>,
    /// Address that serves Flight and Raft to other nodes.
    pub internal: String,
    /// Address at which other nodes reach `internal`. Required if `internal` listens on every
    /// address.
    /// Default: the value of `internal`
    pub advertise: Option<String>,
    /// Whether clients may register system shared memory.
    /// Default: `true` if `public` and `additional` are loopback addresses, else `false`
    pub shared_memory: Option<bool>,
}

/// The section `[cluster]`: membership.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSection {
    /// The first members of a new cluster: a table from id to internal address. Use the same table
    /// in each member's file. You may start the members in any order; the cluster forms once all
    /// of them run. A node with an empty directory asks the other members whether the cluster
    /// exists. A node that has a membership ignores the table.
    #[serde(default)]
    pub bootstrap: BTreeMap<String, String>,
    /// Internal addresses of a running cluster. The node asks them in turn until one admits it.
    #[serde(default)]
    pub join: Vec<String>,
    /// Whether the node waits until `volley cluster add` or `volley cluster replace` admits it.
    #[serde(default)]
    pub await_invitation: bool,
    /// Highest feature level that this node accepts. Set a lower level during an upgrade to keep a
    /// rollback possible.
    /// Default: the highest level of this version
    pub feature_level: Option<u32>,
}

/// The section `[grpc]`: more listeners for gRPC.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct GrpcSection {
    /// Address for Triton's dialect. Triton's own port is 8001.
    pub triton: Option<String>,
    /// Address for the dialect of MLServer and KServe. Their own port is 8081.
    pub mlserver: Option<String>,
}

/// The section `[browser]`: web pages.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct BrowserSection {
    /// Web origins such as `"https://app.example"` whose pages may call this coordinator (CORS)
    /// and open WebSockets to it. Pages of other origins get 403. The hosts of these origins are
    /// also accepted in `Host` by a loopback listener without keys. `volley up` and
    /// `volley coordinator` accept more origins as `--cors-origin`.
    pub origins: Vec<String>,
}

/// Where connectors and models that are registered may lead.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Egress {
    /// Whether URLs may name private and loopback addresses.
    /// Default: `true`
    pub allow_private: Option<bool>,
    /// The only hosts that URLs may name: names, addresses, or `"*.example.org"` for all names
    /// below a domain.
    /// Default: every host
    pub allowed_hosts: Option<Vec<String>>,
}

/// The section `[requests]`: what one request may be, and how many may run.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RequestsSection {
    /// Predictions that may run at the same time. While at least half of them run, each tenant is
    /// limited to an equal share.
    /// Beyond: Further ones are rejected with 429.
    /// Default: `10000`
    pub max_concurrent: Option<Count>,
    /// Largest request body. The flag of `volley up` is `--max-body-size`.
    /// Beyond: A larger body is rejected with 413.
    /// Default: `"16MiB"`
    pub max_body_size: Option<Size>,
    /// Largest body or message with tensors of the Open Inference Protocol, over REST and gRPC. The
    /// flag of `volley up` is `--max-tensor-size`.
    /// Beyond: A larger body is rejected with 413, a larger message with `OutOfRange`.
    /// Default: `"64MiB"`
    pub max_tensor_size: Option<Size>,
    /// Memory for all request bodies and their parsed form. A body counts the memory that it needs
    /// when it is read: a JSON array of numbers at most five times its text, other JSON by its
    /// values.
    /// Beyond: A body that does not fit at the moment gets 429; one that can never fit gets 413.
    /// Default: `"2GiB"`
    pub max_body_memory: Option<Size>,
    /// Deadline of a prediction whose caller sets none.
    /// Beyond: After it, the prediction ends with `deadline_exceeded`, over REST 504.
    /// Default: `"5m"`
    pub default_timeout: Option<TimeSpan>,
    /// Longest deadline that a caller may set.
    /// Beyond: A longer deadline is rejected with 400. A WebSocket is closed with 1001 after this
    /// time.
    /// Default: `"1h"`
    pub max_timeout: Option<TimeSpan>,
}

/// The section `[http]`: connections to the listeners for REST and gRPC.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpSection {
    /// Connections to one address of REST.
    /// Beyond: Further ones are rejected with 503.
    /// Default: `20000`
    pub max_connections: Option<Count>,
    /// Connections from one address, or from one /64 network over IPv6. No address is exempt. Raise
    /// the limit if a proxy or load balancer makes all callers share one address.
    /// Beyond: Further ones are rejected with 429.
    /// Default: half of `max_connections`
    pub max_connections_per_address: Option<Count>,
    /// Time for the headers of a request to arrive.
    /// Beyond: After it, the connection is closed.
    /// Default: `"10s"`
    pub header_timeout: Option<TimeSpan>,
    /// Time for the body of a request to arrive.
    /// Beyond: After it, the request is rejected with 408.
    /// Default: `"30s"`
    pub body_timeout: Option<TimeSpan>,
    /// Time that a connection may have no request. Over HTTP/1, the next request must also arrive
    /// within `header_timeout`.
    /// Beyond: After it, the connection is closed, even if it answers HTTP/2 pings.
    /// Default: `"5m"`
    pub idle_timeout: Option<TimeSpan>,
    /// Time that a client may read nothing, and a WebSocket answer no pings.
    /// Beyond: After it, the client is disconnected.
    /// Default: `"1m"`
    pub write_timeout: Option<TimeSpan>,
}

/// The section `[streams]`: responses that are streamed.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct StreamsSection {
    /// Silence on a stream after which a comment is sent, and the interval of pings on a WebSocket.
    /// Many clients and proxies close a silent connection after 30 s.
    /// Default: `"15s"`
    pub keep_alive_interval: Option<TimeSpan>,
}

/// The section `[resume]`: buffers of resumable streams.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ResumeSection {
    /// How long a resumable stream waits for its client to return.
    /// Beyond: After it, the stream is cancelled, and requests for it get 410.
    /// Default: `"1m"`
    pub window: Option<TimeSpan>,
    /// Buffer of one resumable stream.
    /// Beyond: When it is full, the oldest events that were sent are dropped, then the model waits
    /// for its reader.
    /// Default: `"4MiB"`
    pub max_stream_size: Option<Size>,
    /// Buffers of all resumable streams of one tenant.
    /// Beyond: When they are full, streams that were read are dropped first; then a new resumable
    /// stream is rejected
    /// with 429.
    /// Default: `"64MiB"`
    pub max_tenant_size: Option<Size>,
    /// Buffers of all resumable streams.
    /// Beyond: When they are full, streams that were read are dropped first; then a new resumable
    /// stream is rejected
    /// with 429.
    /// Default: `"256MiB"`
    pub max_total_size: Option<Size>,
}

/// The section `[stored_responses]`: buffers of stored responses.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoredResponses {
    /// How long a coordinator keeps a stored response.
    /// Beyond: After it, the response is deleted, and requests for it get 404.
    /// Default: `"1h"`
    pub max_age: Option<TimeSpan>,
    /// Stored responses of one tenant.
    /// Beyond: The oldest are deleted first.
    /// Default: `4096`
    pub max_per_tenant: Option<Count>,
    /// Largest stored response, including its conversation.
    /// Beyond: A larger response is not stored and contains `"store": false`.
    /// Default: `"4MiB"`
    pub max_response_size: Option<Size>,
    /// Stored responses of one tenant together.
    /// Beyond: The oldest are deleted first.
    /// Default: `"32MiB"`
    pub max_tenant_size: Option<Size>,
    /// All stored responses together.
    /// Beyond: The oldest are deleted first.
    /// Default: `"128MiB"`
    pub max_total_size: Option<Size>,
}

/// The section `[routing]`: the choice of a replica for each request.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RoutingSection {
    /// Replicas that are tried for one prediction before its first chunk.
    /// Beyond: After them, the caller gets the error of the last one.
    /// Default: `3`
    pub max_attempts: Option<Count>,
    /// Average number of retries per request, from 0 to 10. With 0.2, a failing cluster receives at
    /// most 20 % more load.
    /// Beyond: Beyond it, the caller gets the error of the attempt.
    /// Default: `0.2`
    pub retry_ratio: Option<f64>,
    /// Time after which a request without a response is also sent to a second replica. Generations
    /// are never sent twice. `retry_ratio` limits these requests too.
    /// Default: never
    pub hedge_delay: Option<TimeSpan>,
    /// Time over which a new replica receives a growing share of the requests.
    /// Default: `"10s"`
    pub slow_start_window: Option<TimeSpan>,
}

/// The section `[activation]`: requests for models that were scaled to zero.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ActivationSection {
    /// How long a request waits for a model that was scaled to zero.
    /// Beyond: After it, the request is rejected with 503.
    /// Default: `"1m"`
    pub timeout: Option<TimeSpan>,
    /// Requests that may wait for such models at the same time.
    /// Beyond: Further ones are rejected with 429.
    /// Default: `256`
    pub max_pending: Option<Count>,
}

/// The section `[liveness]`: when a worker is considered lost.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct LivenessSection {
    /// Silence after which a worker is suspect and tried last.
    /// Default: `"1500ms"`
    pub suspect_timeout: Option<TimeSpan>,
    /// Silence after which a worker is dead and receives no requests.
    /// Default: `"3s"`
    pub dead_timeout: Option<TimeSpan>,
}

/// The section `[placement]`: when replicas move to other workers.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct PlacementSection {
    /// Time after which the replicas of a dead worker are placed on other workers.
    /// Default: `"10s"`
    pub replacement_delay: Option<TimeSpan>,
    /// How long a model, a worker and the leader must be unchanged before replicas move from full
    /// workers to emptier ones. The cluster settings decide whether they move at all.
    /// Default: `"1m"`
    pub rebalance_delay: Option<TimeSpan>,
}

/// The section `[registry]`: models, connectors and everything else that is registered.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RegistrySection {
    /// Share of the registry's limits (entries of each kind, and bytes) that one tenant may use, in
    /// percent.
    /// Beyond: Further writes of the tenant are rejected with 413.
    /// Default: `25`
    pub tenant_quota_percent: Option<usize>,
}

/// The section `[raft]`: consensus of the coordinators.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RaftSection {
    /// Log entries between two snapshots.
    /// Default: `1000`
    pub snapshot_threshold: Option<Count>,
    /// How long a write may wait for its acknowledgment. If `timeout_multiplier` is set, this must
    /// be longer than the leader's lease.
    /// Beyond: After it, the write fails with `unavailable`, over REST 503.
    /// Default: `"2s"` times `timeout_multiplier`
    pub write_timeout: Option<TimeSpan>,
    /// Factor by which all Raft timeouts are lengthened, from 1 to 10, for slow disks and slow
    /// networks.
    /// Default: `1`
    pub timeout_multiplier: Option<u32>,
}

/// The section `[shutdown]`: what the node does after SIGTERM.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShutdownSection {
    /// After SIGTERM, how long the coordinator still accepts requests while its readiness is
    /// already
    /// false, and closes HTTP/1 connections after their responses. Behind a load balancer, set it a
    /// little longer than the interval between two health checks.
    /// Default: `"500ms"`
    pub delay: Option<TimeSpan>,
    /// How long running streams may take to end after SIGTERM.
    /// Beyond: After it, streams that still run are aborted.
    /// Default: `"30s"`
    pub drain_timeout: Option<TimeSpan>,
}

/// The section `[uploads]`: files of models that come with a load.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct UploadsSection {
    /// URL of the place for the files of models that come with a load. It ends in `/`, and every
    /// worker reaches it: `"s3://bucket/models/"` or `"file:///mnt/models/"`. The settings of a
    /// bucket are in the environment, for example `AWS_REGION`. Volley stores the same files once
    /// and deletes none. If it is not set, loads with files are rejected.
    pub store: Option<String>,
}
