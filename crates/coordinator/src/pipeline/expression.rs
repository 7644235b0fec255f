//! Templates and expressions over the columns of rows. Time and output are limited.

use std::collections::BTreeMap;
use std::io;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value};
use volley_types::chat::{conversation, text_at};
use volley_types::{ErrorCode, ParamValue, PredictError};

/// Maximum number of instructions of a template or expression for one row.
const FUEL: u64 = 1_000_000;
/// Maximum length of a rendered text in bytes.
pub(super) const MAX_RENDERED: usize = 1 << 20;

/// Variables of a template or an expression: columns and constants.
#[derive(Debug, Default)]
pub(super) struct Scope {
    pub(super) columns: BTreeMap<String, ArrayRef>,
    pub(super) constants: BTreeMap<String, Value>,
}

impl Scope {
    /// The variables of a row.
    pub(super) fn row(&self, row: usize) -> BTreeMap<String, Value> {
        let columns = self.columns.iter();
        let cells = columns.map(|(name, column)| (name.clone(), cell(column, row)));
        cells.chain(self.constants.clone()).collect()
    }
}

fn environment<'source>() -> Environment<'source> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(FUEL));
    // Undefined variables are errors, so that misspelt names are not ignored.
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment
}

/// Checks the syntax of a template.
///
/// # Errors
/// `InvalidInput` with the place.
pub(super) fn check_template(source: &str) -> Result<(), PredictError> {
    let environment = environment();
    let read = environment.template_from_str(source);
    read.map(drop)
        .map_err(|error| malformed("template", &error))
}

/// Checks the syntax of an expression.
///
/// # Errors
/// `InvalidInput` with the place.
pub(super) fn check_expression(source: &str) -> Result<(), PredictError> {
    let environment = environment();
    let read = environment.compile_expression(source);
    read.map(drop)
        .map_err(|error| malformed("expression", &error))
}

fn malformed(what: &str, error: &Error) -> PredictError {
    PredictError::invalid(format!("its {what} is malformed: {error}"))
}

/// Renders a template for each of `rows`.
///
/// # Errors
/// `InvalidInput` when it refuses a row or takes too long; `TooLarge`.
pub(super) fn render(
    source: &str,
    rows: impl Iterator<Item = BTreeMap<String, Value>>,
) -> Result<Vec<String>, PredictError> {
    let environment = environment();
    let template = environment.template_from_str(source);
    let template = template.map_err(|error| malformed("template", &error))?;
    let texts = rows.map(|row| {
        let mut text = BoundedText::default();
        let rendered = template.render_captured_to(row, &mut text).map(drop);
        match (rendered, text.is_full) {
            (_, true) => Err(PredictError::new(
                ErrorCode::TooLarge,
                format!("its template makes more than {MAX_RENDERED} bytes"),
            )),
            (Err(error), _) => Err(failed("template", error)),
            // What is written comes in whole texts.
            (Ok(()), false) => Ok(String::from_utf8_lossy(&text.bytes).into_owned()),
        }
    });
    texts.collect()
}

/// Evaluates an expression for each row and converts the value with `read`.
///
/// # Errors
/// `InvalidInput` when it fails or takes too long; the errors of `read`.
pub(super) fn evaluate<T>(
    source: &str,
    known: &Scope,
    rows: usize,
    read: impl Fn(Value) -> Result<T, PredictError>,
) -> Result<Vec<T>, PredictError> {
    let environment = environment();
    let expression = environment.compile_expression(source);
    let expression = expression.map_err(|error| malformed("expression", &error))?;
    let values = (0..rows).map(|row| {
        let value = expression.eval(known.row(row));
        read(value.map_err(|error| failed("expression", error))?)
    });
    values.collect()
}

fn failed(what: &str, error: Error) -> PredictError {
    let why = match error.kind() {
        ErrorKind::OutOfFuel => "takes too long".to_owned(),
        _ => format!("fails: {error}"),
    };
    PredictError::invalid(format!("its {what} {why}")).with_source(error)
}

/// A text buffer with a maximum length.
#[derive(Default)]
struct BoundedText {
    bytes: Vec<u8>,
    is_full: bool,
}

impl io::Write for &mut BoundedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if MAX_RENDERED < self.bytes.len() + bytes.len() {
            self.is_full = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A parameter as a template value.
pub(super) fn constant(value: &ParamValue) -> Value {
    match value {
        ParamValue::Bool(value) => Value::from(*value),
        ParamValue::Int(value) => Value::from(*value),
        ParamValue::Float(value) => Value::from(*value),
        ParamValue::Text(text) => Value::from(text.as_str()),
        ParamValue::Json(text) => match serde_json::from_str::<serde_json::Value>(text) {
            Ok(json) => Value::from(Serde(json)),
            Err(_) => Value::from(text.as_str()),
        },
    }
}

macro_rules! number {
    ($column:expr, $row:expr, $kind:ty) => {
        Value::from($column.as_primitive::<$kind>().value($row))
    };
}

/// A cell as a template value; `none` for unsupported types.
fn cell(column: &ArrayRef, row: usize) -> Value {
    if column.is_null(row) {
        return Value::from(());
    }
    match column.data_type() {
        DataType::Utf8 | DataType::LargeUtf8 => Value::from(text_at(column, row)),
        DataType::Boolean => Value::from(column.as_boolean().value(row)),
        DataType::Int8 => number!(column, row, Int8Type),
        DataType::Int16 => number!(column, row, Int16Type),
        DataType::Int32 => number!(column, row, Int32Type),
        DataType::Int64 => number!(column, row, Int64Type),
        DataType::UInt8 => number!(column, row, UInt8Type),
        DataType::UInt16 => number!(column, row, UInt16Type),
        DataType::UInt32 => number!(column, row, UInt32Type),
        DataType::UInt64 => number!(column, row, UInt64Type),
        DataType::Float32 => number!(column, row, Float32Type),
        DataType::Float64 => number!(column, row, Float64Type),
        DataType::List(_) => list(column, row),
        DataType::FixedSizeList(..) => cells(&column.as_fixed_size_list().value(row)),
        DataType::Struct(fields) => {
            let parts = column.as_struct();
            let names = fields.iter().map(|field| field.name().clone());
            let values = parts.columns().iter().map(|part| cell(part, row));
            Value::from(names.zip(values).collect::<BTreeMap<_, _>>())
        }
        _ => Value::from(()),
    }
}

fn list(column: &ArrayRef, row: usize) -> Value {
    let Some(messages) = conversation(column, row) else {
        return cells(&column.as_list::<i32>().value(row));
    };
    let messages = messages.into_iter().map(|message| {
        let fields = [
            ("role".to_owned(), Value::from(message.role)),
            ("content".to_owned(), Value::from(message.content)),
        ];
        Value::from(BTreeMap::from(fields))
    });
    Value::from(messages.collect::<Vec<_>>())
}

fn cells(items: &ArrayRef) -> Value {
    Value::from(
        (0..items.len())
            .map(|row| cell(items, row))
            .collect::<Vec<_>>(),
    )
}

/// The value of an expression as a score.
///
/// # Errors
/// `InvalidInput` for a value that is not a number.
pub(super) fn score(value: Value) -> Result<f32, PredictError> {
    let wrong = |_| PredictError::invalid("its expression does not return a number");
    let number = f64::try_from(value).map_err(wrong)?;
    #[expect(clippy::cast_possible_truncation, reason = "scores are of this type")]
    let number = number as f32;
    Ok(number)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Int64Array, StringArray};

    use super::*;

    fn known() -> Scope {
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["short", "quite a bit longer"]));
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
        Scope {
            columns: [("text".to_owned(), texts), ("n".to_owned(), numbers)].into(),
            constants: [("k".to_owned(), Value::from(7))].into(),
        }
    }

    #[test]
    fn columns_and_constants_are_known_by_name() {
        let known = known();
        let rows = (0..2).map(|row| known.row(row));
        let texts = render("{{ text|upper }} {{ n }} {{ k }}", rows).unwrap();
        assert_eq!(texts, ["SHORT 1 7", "QUITE A BIT LONGER None 7"]);
        let long = |value: Value| Ok(value.is_true());
        let long = evaluate("text|length > 10", &known, 2, long).unwrap();
        assert_eq!(long, [false, true]);
    }

    #[test]
    fn what_is_misspelt_endless_or_huge_is_told() {
        let known = known();
        let rows = || std::iter::once(known.row(0));
        for (template, says) in [
            ("{{ txet }}", "undefined"),
            ("{{ text", "malformed"),
            (
                "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
                "too long",
            ),
        ] {
            let refused = render(template, rows()).unwrap_err();
            assert_eq!(refused.code, ErrorCode::InvalidInput);
            assert!(refused.message.contains(says), "{}", refused.message);
        }
        let huge = format!(
            "{{% for a in range(9999) %}}{}{{% endfor %}}",
            "x".repeat(999)
        );
        let huge = render(&huge, rows()).unwrap_err();
        assert_eq!(huge.code, ErrorCode::TooLarge, "{huge}");
    }
}
