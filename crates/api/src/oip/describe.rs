//! What a server and its models are, in the protocol's words.

use arrow_schema::Schema;
use volley_types::{Signature, Task};

use super::tensors;

/// The server's name.
pub(super) const SERVER: &str = "volley";

/// What is there besides the protocol's core, over gRPC.
pub(super) const GRPC_EXTENSIONS: [&str; 6] = [
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
];

/// The input of a model that generates text.
pub(super) const TEXT_INPUT: &str = "text_input";

/// Its output.
pub(super) const TEXT_OUTPUT: &str = "text_output";

/// A tensor that a model takes or gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TensorForm {
    pub(super) name: String,
    pub(super) datatype: &'static str,
    /// -1 where a size is free; the first counts the rows.
    pub(super) shape: Vec<i64>,
    pub(super) optional: bool,
}

/// The name of a model's kind.
pub(super) fn platform(signature: &Signature) -> String {
    format!("volley_{}", signature.task.as_str())
}

/// Triton's name for a datatype in a configuration.
pub(super) fn config_type(datatype: &str) -> String {
    match datatype {
        "BYTES" => "TYPE_STRING".to_owned(),
        other => format!("TYPE_{other}"),
    }
}

/// What a model takes.
pub(super) fn inputs(signature: &Signature) -> Vec<TensorForm> {
    match signature.task {
        Task::Generate => vec![text(TEXT_INPUT)],
        _ => columns(&signature.input),
    }
}

/// What a model gives.
pub(super) fn outputs(signature: &Signature) -> Vec<TensorForm> {
    match signature.task {
        Task::Generate => vec![text(TEXT_OUTPUT)],
        _ => columns(&signature.output),
    }
}

fn text(name: &str) -> TensorForm {
    TensorForm {
        name: name.to_owned(),
        datatype: "BYTES",
        shape: vec![-1],
        optional: false,
    }
}

fn columns(schema: &Schema) -> Vec<TensorForm> {
    let described = schema.fields().iter().filter_map(|field| {
        let datatype = tensors::described(field)?;
        Some(TensorForm {
            name: field.name().clone(),
            datatype,
            shape: tensors::declared_shape(field),
            optional: field.is_nullable(),
        })
    });
    described.collect()
}
