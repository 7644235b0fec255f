//! Wire messages: the code generated from `/proto` (committed, see `just codegen`), and all
//! conversions between it and [`volley_types`], JSON or bytes, one module per message. No logic, no
//! sockets.

#[rustfmt::skip]
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated code")]
mod generated {
    pub mod inference {
        pub mod triton {
            include!("generated/triton/inference.rs");
        }
        pub mod mlserver {
            include!("generated/mlserver/inference.rs");
        }
    }
    pub mod volley {
        pub mod predict {
            pub mod v1 {
                include!("generated/volley.predict.v1.rs");
            }
        }
        pub mod quota {
            pub mod v1 {
                include!("generated/volley.quota.v1.rs");
            }
        }
        pub mod registry {
            pub mod v1 {
                include!("generated/volley.registry.v1.rs");
            }
        }
        pub mod raft {
            pub mod v1 {
                include!("generated/volley.raft.v1.rs");
            }
        }
        pub mod streams {
            pub mod v1 {
                include!("generated/volley.streams.v1.rs");
            }
        }
        pub mod tasks {
            pub mod v1 {
                include!("generated/volley.tasks.v1.rs");
            }
        }
        pub mod worker {
            pub mod v1 {
                include!("generated/volley.worker.v1.rs");
            }
        }
    }
}

/// The encoded size of a message in bytes.
#[must_use]
pub fn wire_bytes(message: &impl prost::Message) -> usize {
    message.encoded_len()
}

/// The Open Inference Protocol over gRPC: Triton's service with the messages of both flavors, and
/// MLServer's service.
pub use generated::inference;
pub use generated::volley::{predict, quota, raft, registry, streams, tasks, worker};

pub mod alias_records;
pub mod continuation;
mod deployment_records;
mod drain_records;
pub mod group_records;
pub mod key_records;
pub mod model_config;
mod name_records;
pub mod params;
pub mod pipeline_records;
pub mod predict_command;
pub mod registry_records;
mod reply_records;
pub mod report_changes;
pub mod resume;
pub mod secret_records;
pub mod status;
pub mod task_records;
pub mod tensor_contents;
pub mod worker_report;
