//! `predict` and its typed forms as asynchronous scalar functions of DataFusion.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::compute::{CastOptions, can_cast_types, cast_with_options};
use arrow::datatypes::{DataType, Field, FieldRef};
use async_trait::async_trait;
use datafusion::common::{ScalarValue, plan_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::context::SessionContext;
use datafusion::logical_expr::async_udf::{AsyncScalarUDF, AsyncScalarUDFImpl};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};
use volley_flight::client::FunctionType;

use crate::cluster::SqlCluster;
use crate::udf_placement::AsyncUdfPlacementRule;

/// Registers these functions in `context`:
///
/// | | |
/// |---|---|
/// | `predict(model, …)` | the model's own arguments and result |
/// | `generate(model, prompt)` | text |
/// | `embed(model, text)` | a list of 32-bit floats |
/// | `rerank(model, query, text)` | a 32-bit float |
/// | `classify(model, text)` | the best label |
///
/// The model is a text literal: `name`, optionally with `:version` and `?option=value&…`. A row
/// with a null argument has a null result. Also registers a rule that rejects model calls where
/// DataFusion does not support asynchronous functions, for example in `ORDER BY`.
pub fn register(context: &SessionContext, cluster: &Arc<SqlCluster>) {
    context.add_analyzer_rule(Arc::new(AsyncUdfPlacementRule));
    let floats = DataType::new_list(DataType::Float32, true);
    for (name, arguments, result) in [
        ("predict", None, None),
        ("generate", Some(1), Some(DataType::Utf8)),
        ("embed", Some(1), Some(floats)),
        ("rerank", Some(2), Some(DataType::Float32)),
        ("classify", Some(1), Some(DataType::Utf8)),
    ] {
        let function = ModelFunction {
            name,
            arguments,
            result,
            signature: Signature::variadic_any(Volatility::Volatile),
            cluster: cluster.clone(),
        };
        let function = AsyncScalarUDF::new(Arc::new(function));
        context.register_udf(function.into_scalar_udf());
    }
}

#[derive(Debug)]
struct ModelFunction {
    name: &'static str,
    /// Number of arguments after the model, if fixed.
    arguments: Option<usize>,
    /// The type of the result, if fixed.
    result: Option<DataType>,
    signature: Signature,
    cluster: Arc<SqlCluster>,
}

impl PartialEq for ModelFunction {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.cluster, &other.cluster)
    }
}

impl Eq for ModelFunction {}

impl Hash for ModelFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
        Arc::as_ptr(&self.cluster).hash(state);
    }
}

impl ModelFunction {
    /// Checks a call of `model` at planning time.
    fn check(&self, model: &str, given: &[FieldRef]) -> Result<FunctionType> {
        let function = self.cluster.function(model)?;
        let fits = |(given, wanted): (&FieldRef, &DataType)| passes(given.data_type(), wanted);
        let takes = function.arguments.len() == given.len()
            && given.iter().zip(&function.arguments).all(fits);
        let as_declared = self
            .arguments
            .is_none_or(|count| count == function.arguments.len())
            && self
                .result
                .as_ref()
                .is_none_or(|kind| *kind == function.result);
        if !as_declared {
            return plan_err!(
                "the model '{}' cannot be called by {}(): its inputs are ({}) and its result is {}",
                function.name,
                self.name,
                types(function.arguments.iter()),
                function.result
            );
        }
        if !takes {
            return plan_err!(
                "the model '{}' has the arguments ({}), but it was called with ({})",
                function.name,
                types(function.arguments.iter()),
                types(given.iter().map(|field| field.data_type()))
            );
        }
        Ok(function)
    }
}

impl ScalarUDFImpl for ModelFunction {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        match &self.result {
            Some(kind) => Ok(kind.clone()),
            None => plan_err!("the result of {}() is the model's", self.name),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let model = args.scalar_arguments.first().copied().flatten();
        let Some(model) = model.and_then(text) else {
            return plan_err!(
                "the first argument of {}() must be the model's name as a text literal",
                self.name
            );
        };
        let given = args.arg_fields.get(1..).unwrap_or_default();
        let function = self.check(model, given)?;
        Ok(Arc::new(Field::new(self.name, function.result, true)))
    }

    fn invoke_with_args(&self, _args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Err(DataFusionError::Internal(
            "the function of a model is asynchronous".to_owned(),
        ))
    }
}

#[async_trait]
impl AsyncScalarUDFImpl for ModelFunction {
    fn ideal_batch_size(&self) -> Option<usize> {
        Some(self.cluster.rows_per_call())
    }

    async fn invoke_async_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows;
        let mut given = args.args.into_iter();
        let model = match given.next() {
            Some(ColumnarValue::Scalar(value)) => text(&value).map(str::to_owned),
            // DataFusion may expand the literal to a column; all its rows are equal.
            Some(ColumnarValue::Array(values)) if !values.is_empty() => {
                text(&ScalarValue::try_from_array(&values, 0)?).map(str::to_owned)
            }
            Some(ColumnarValue::Array(_)) | None => None,
        };
        let kind = args.return_field.data_type();
        let Some(model) = model.filter(|_| rows > 0) else {
            return Ok(ColumnarValue::Array(arrow::array::new_null_array(
                kind, rows,
            )));
        };
        let wanted = self.cluster.function(&model)?.arguments;
        let arguments = given.zip(&wanted).map(|(value, wanted)| {
            let value = value.into_array(rows)?;
            convert(&value, wanted)
        });
        let arguments = arguments.collect::<Result<Vec<_>>>()?;
        let values = self.cluster.call(&model, arguments, rows).await?;
        if values.data_type() != kind {
            return Err(DataFusionError::Execution(format!(
                "the model '{model}' was replaced by one that returns {} while the query ran",
                values.data_type()
            )));
        }
        Ok(ColumnarValue::Array(values))
    }
}

/// Whether a column can be converted to the type of the argument without a change of meaning.
fn passes(given: &DataType, wanted: &DataType) -> bool {
    let text = |kind: &DataType| {
        matches!(
            kind,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
        )
    };
    match (given, wanted) {
        (given, wanted) if given == wanted => true,
        (DataType::Null, _) => true,
        (given, DataType::Utf8) => text(given),
        (given, wanted) if wanted.is_floating() => given.is_numeric(),
        (given, wanted) if wanted.is_integer() => given.is_integer(),
        (given, DataType::List(wanted)) => match given {
            DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
                passes(item.data_type(), wanted.data_type())
            }
            _ => false,
        },
        (DataType::Struct(_), _) | (_, DataType::Struct(_)) => can_cast_types(given, wanted),
        _ => matches!(
            (given, wanted),
            (
                DataType::LargeBinary | DataType::BinaryView,
                DataType::Binary
            )
        ),
    }
}

fn convert(column: &ArrayRef, kind: &DataType) -> Result<ArrayRef> {
    // Fail instead of replacing values that do not fit by null.
    let options = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    Ok(cast_with_options(column, kind, &options)?)
}

/// The text of a literal; `None` for null and for other types.
fn text(value: &ScalarValue) -> Option<&str> {
    value.try_as_str().flatten()
}

fn types<'a>(types: impl Iterator<Item = &'a DataType>) -> String {
    let types: Vec<_> = types.map(ToString::to_string).collect();
    types.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_pass_where_they_mean_the_same() {
        let floats = DataType::new_list(DataType::Float32, true);
        let vector = DataType::new_fixed_size_list(DataType::Float64, 3, true);
        for (given, wanted, pass) in [
            (DataType::Utf8View, DataType::Utf8, true),
            (DataType::Null, DataType::Utf8, true),
            (DataType::Int64, DataType::Utf8, false),
            (DataType::Int64, DataType::Float32, true),
            (DataType::Float64, DataType::Int64, false),
            (vector, floats.clone(), true),
            (DataType::Utf8, floats, false),
        ] {
            assert_eq!(passes(&given, &wanted), pass, "{given} as {wanted}");
        }
    }
}
