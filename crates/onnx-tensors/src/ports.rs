//! Reads a session's inputs and outputs as columns.

use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use volley_onnx_runtime::ort::session::Session;
use volley_onnx_runtime::ort::value::{Outlet, TensorElementType, ValueType};
use volley_types::PredictError;

use crate::columns::{Port, is_batched};
use volley_model_directory::overrides;
use volley_model_directory::overrides::Overrides;
use volley_model_directory::triton::TritonConfig;
use volley_onnx_runtime::graph::GraphSummary;

/// The inputs and outputs of a session.
pub(crate) struct Ports {
    pub(crate) inputs: Vec<Port>,
    pub(crate) outputs: Vec<Port>,
    pub(crate) batched: bool,
    pub(crate) output_schema: SchemaRef,
}

impl Ports {
    /// Whether the inputs vary in something that their declaration leaves open: see
    /// [`failure::classify`](super::failure::classify).
    pub(super) fn are_varied(&self) -> bool {
        self.inputs.iter().any(Port::is_varied)
    }
}

/// The declarations in a model's files.
pub(super) struct Files<'f> {
    pub(super) outline: &'f GraphSummary,
    pub(super) own: &'f Overrides,
    pub(super) declared: Option<&'f TritonConfig>,
}

impl Files<'_> {
    /// The shape of an input or output; `known` is the shape from ONNX Runtime.
    ///
    /// # Errors
    /// `InvalidInput` when no file declares the shape, or `model.toml` redeclares it.
    fn shape(&self, name: &str, known: &[i64]) -> Result<Vec<i64>, PredictError> {
        // An empty shape is either a scalar or an undeclared shape.
        let unknown = known.is_empty() && self.outline.shapeless.contains(name);
        let declared = || self.declared.and_then(|declared| declared.shape_of(name));
        match (unknown, self.own.shapes.get(name)) {
            (true, Some(shape)) => Ok(shape.clone()),
            (false, Some(_)) => Err(PredictError::invalid(format!(
                "{}: 'shapes' has '{name}', whose shape the graph already declares",
                overrides::FILE
            ))),
            (false, None) => Ok(known.to_vec()),
            (true, None) => declared().ok_or_else(|| {
                PredictError::invalid(format!(
                    "the graph does not declare the number of dimensions of '{name}'; set its \
                     shape in the model, or in {}, as {name} = [-1, -1] below [shapes]",
                    overrides::FILE
                ))
            }),
        }
    }

    fn tensor(&self, outlet: &Outlet) -> Result<Tensor, PredictError> {
        match outlet.dtype() {
            ValueType::Tensor {
                ty,
                shape,
                dimension_symbols,
            } => Ok(Tensor {
                name: outlet.name().to_owned(),
                element: *ty,
                shape: self.shape(outlet.name(), shape)?,
                symbols: dimension_symbols.to_vec(),
            }),
            other => Err(PredictError::invalid(format!(
                "input or output '{}' is {}; only tensors are served, and for each row a map from \
                 class to probability as the operator ZipMap returns it",
                outlet.name(),
                kind(other)
            ))),
        }
    }

    fn output(&self, outlet: &Outlet) -> Result<Output, PredictError> {
        let ValueType::Sequence(item) = outlet.dtype() else {
            return self.tensor(outlet).map(Output::Tensor);
        };
        let key = match item.as_ref() {
            ValueType::Map { key, value } if *value == TensorElementType::Float32 => Some(*key),
            _ => None,
        };
        let classes = self.outline.classes.get(outlet.name());
        match (key, classes) {
            (Some(TensorElementType::Int64 | TensorElementType::String), Some(classes)) => Ok(
                Output::Maps(Port::of_classes(outlet.name(), classes.clone())),
            ),
            (Some(_), None) => Err(PredictError::invalid(format!(
                "output '{}' is a map for each row, and the graph does not declare its classes; \
                 export the model with 'zipmap' off",
                outlet.name()
            ))),
            _ => self.tensor(outlet).map(Output::Tensor),
        }
    }

    fn port(&self, tensor: &Tensor, batched: bool) -> Result<Port, PredictError> {
        let port = Port::new(&tensor.name, tensor.element, &tensor.shape, batched)?;
        let reshape = self.declared.and_then(|it| it.reshape_of(&tensor.name));
        match reshape {
            Some((seen, inner)) => port.reshaped(seen, inner),
            None => Ok(port),
        }
    }
}

struct Tensor {
    name: String,
    element: TensorElementType,
    shape: Vec<i64>,
    symbols: Vec<String>,
}

impl Tensor {
    fn dims(&self) -> (Vec<i64>, Vec<String>) {
        (self.shape.clone(), self.symbols.clone())
    }

    /// Whether it looks like a classifier's label that is declared for a single row, as LightGBM's
    /// exporter does. The label actually has one element for each row.
    fn is_label_of_one(&self) -> bool {
        let kinds = [TensorElementType::Int64, TensorElementType::String];
        self.shape == [1] && kinds.contains(&self.element)
    }
}

enum Output {
    Tensor(Tensor),
    Maps(Port),
}

/// Reads the columns of `session`'s inputs and outputs.
///
/// # Errors
/// `InvalidInput` with the name of an input or output that cannot be a column.
pub(super) fn read(session: &Session, files: &Files<'_>) -> Result<Ports, PredictError> {
    let inputs = session.inputs().iter().map(|outlet| files.tensor(outlet));
    let inputs: Vec<Tensor> = inputs.collect::<Result<_, _>>()?;
    let outputs = session.outputs().iter().map(|outlet| files.output(outlet));
    let mut outputs: Vec<Output> = outputs.collect::<Result<_, _>>()?;
    let open = |tensor: &Tensor| tensor.shape.first().is_some_and(|dim| *dim < 0);
    if files.outline.classifies && inputs.iter().all(open) {
        for output in &mut outputs {
            if let Output::Tensor(tensor) = output
                && tensor.is_label_of_one()
            {
                tensor.shape = vec![-1];
            }
        }
    }
    let given: Vec<_> = inputs.iter().map(Tensor::dims).collect();
    let made = outputs.iter().filter_map(|output| match output {
        Output::Tensor(tensor) => Some(tensor.dims()),
        Output::Maps(_) => None,
    });
    let batched = is_batched(&given, &made.collect::<Vec<_>>());
    let inputs = inputs.iter().map(|tensor| files.port(tensor, batched));
    let outputs = outputs.into_iter().map(|output| match output {
        Output::Tensor(tensor) => files.port(&tensor, batched),
        Output::Maps(port) => Ok(port),
    });
    let (inputs, outputs): (Vec<_>, Vec<_>) = (
        inputs.collect::<Result<_, _>>()?,
        outputs.collect::<Result<_, _>>()?,
    );
    let output_schema = Schema::new(outputs.iter().map(Port::field).collect::<Vec<_>>());
    Ok(Ports {
        inputs,
        outputs,
        batched,
        output_schema: Arc::new(output_schema),
    })
}

/// Describes the type of an input or output that is not a tensor.
fn kind(value: &ValueType) -> &'static str {
    match value {
        ValueType::Sequence(_) => "a sequence",
        ValueType::Map { .. } => "a map",
        ValueType::Optional(_) => "optional",
        _ => "no tensor",
    }
}
