//! Descriptions of the server and its models in the protocol's format.

use arrow_schema::Schema;
use serde_json::Value;
use volley_types::{Signature, Task};

use super::{ResolvedModel, tensors};

/// Name of the server.
pub(super) const SERVER: &str = "volley";

/// Supported extensions of the protocol over gRPC.
pub(super) const GRPC_EXTENSIONS: [&str; 10] = [
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
];

/// Name of the input of a generation model.
pub(super) const TEXT_INPUT: &str = "text_input";

/// Name of the output of a generation model.
pub(super) const TEXT_OUTPUT: &str = "text_output";

/// An input or output tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TensorForm {
    pub(super) name: String,
    pub(super) datatype: &'static str,
    /// Dimensions, with -1 for an open one. The first dimension is the number of rows.
    pub(super) shape: Vec<i64>,
    pub(super) optional: bool,
}

/// The platform of a model.
pub(super) fn platform(found: &ResolvedModel) -> String {
    let config = found.served.config.as_ref();
    let own = config.and_then(|config| config.get("platform")?.as_str());
    own.map_or_else(
        || format!("volley_{}", found.signature.task.as_str()),
        str::to_owned,
    )
}

/// Replaces the shapes in `forms` by those of the model's own configuration, preceded by the batch
/// dimension if there is one.
pub(super) fn declared(
    found: &ResolvedModel,
    field: &str,
    mut forms: Vec<TensorForm>,
) -> Vec<TensorForm> {
    let Some(config) = &found.served.config else {
        return forms;
    };
    let most = config.get("max_batch_size").and_then(Value::as_i64);
    let batch = (0 < most.unwrap_or(0)).then_some(-1);
    let tensors = config.get(field).and_then(Value::as_array);
    for tensor in tensors.into_iter().flatten() {
        let named = |form: &&mut TensorForm| tensor["name"] == *form.name;
        if let Some(form) = forms.iter_mut().find(named)
            && let Some(dims) = tensor.get("dims").and_then(Value::as_array)
        {
            let dims = dims.iter().map(|dim| dim.as_i64().unwrap_or(-1));
            form.shape = batch.into_iter().chain(dims).collect();
        }
    }
    forms
}

/// The name of a datatype in a Triton configuration.
pub(super) fn config_type(datatype: &str) -> String {
    match datatype {
        "BYTES" => "TYPE_STRING".to_owned(),
        other => format!("TYPE_{other}"),
    }
}

/// The input tensors of a model.
pub(super) fn inputs(signature: &Signature) -> Vec<TensorForm> {
    match signature.task {
        Task::Generate => vec![text(TEXT_INPUT)],
        _ => columns(&signature.input),
    }
}

/// The output tensors of a model.
pub(super) fn outputs(signature: &Signature) -> Vec<TensorForm> {
    match signature.task {
        Task::Generate => vec![text(TEXT_OUTPUT)],
        _ => columns(&signature.declared_output()),
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
