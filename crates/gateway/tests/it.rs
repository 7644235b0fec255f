//! Tests of the HTTP edge with a real listener, a real client and a scripted cluster.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

#[path = "it/aliases.rs"]
mod aliases;
#[path = "it/anthropic.rs"]
mod anthropic;
#[path = "it/bounds.rs"]
mod bounds;
#[path = "it/citations.rs"]
mod citations;
#[path = "it/cluster.rs"]
mod cluster;
#[path = "it/cohere.rs"]
mod cohere;
#[path = "it/connectors.rs"]
mod connectors;
#[path = "it/drains.rs"]
mod drains;
#[path = "it/encoding.rs"]
mod encoding;
#[path = "it/grpc.rs"]
mod grpc;
#[path = "it/grpc_models.rs"]
mod grpc_models;
#[path = "it/grpc_streams.rs"]
mod grpc_streams;
#[path = "it/infer_stream.rs"]
mod infer_stream;
#[path = "it/keys.rs"]
mod keys;
#[path = "it/lossless.rs"]
mod lossless;
#[path = "it/model_lists.rs"]
mod model_lists;
#[path = "it/mutants.rs"]
mod mutants;
#[path = "it/oip.rs"]
mod oip;
#[path = "it/oip_extensions.rs"]
mod oip_extensions;
#[path = "it/oip_loads.rs"]
mod oip_loads;
#[path = "it/ollama.rs"]
mod ollama;
#[path = "it/openai.rs"]
mod openai;
#[path = "it/openapi.rs"]
mod openapi;
#[path = "it/opensearch.rs"]
mod opensearch;
#[path = "it/origins.rs"]
mod origins;
#[path = "it/passed_on.rs"]
mod passed_on;
#[path = "it/predictions.rs"]
mod predictions;
#[path = "it/probabilities.rs"]
mod probabilities;
#[path = "it/reference.rs"]
mod reference;
#[path = "it/refusals.rs"]
mod refusals;
#[path = "it/registrations.rs"]
mod registrations;
#[path = "it/responses.rs"]
mod responses;
#[path = "it/resume.rs"]
mod resume;
#[path = "it/routes.rs"]
mod routes;
#[path = "it/row_details.rs"]
mod row_details;
#[path = "it/rows.rs"]
mod rows;
#[path = "it/sockets.rs"]
mod sockets;
#[path = "it/stop_sequences.rs"]
mod stop_sequences;
#[path = "it/stored.rs"]
mod stored;
#[path = "it/streams.rs"]
mod streams;
#[path = "it/support.rs"]
mod support;
#[path = "it/tenants.rs"]
mod tenants;
#[path = "it/texts.rs"]
mod texts;
#[path = "it/tool_arguments.rs"]
mod tool_arguments;
#[path = "it/trail.rs"]
mod trail;
#[path = "it/whole.rs"]
mod whole;
#[path = "it/ws.rs"]
mod ws;
