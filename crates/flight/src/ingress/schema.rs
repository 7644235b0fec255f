//! Checks of schema messages, before Arrow's reader sees them: it panics on unknown types.

use arrow_ipc::{DateUnit, Endianness, Field, IntervalUnit, Precision, Schema, TimeUnit, Type};
use volley_types::PredictError;

use super::malformed;

/// Maximum number of columns, including nested ones.
const MAX_FIELDS: usize = 4096;

/// The deepest nesting of types.
const MAX_DEPTH: usize = 16;

/// Reason for the rejection of a column.
type Refusal = &'static str;

const UNKNOWN: Refusal = "a type that this service does not know";

/// Checks that every column has a supported type.
///
/// # Errors
/// `InvalidInput`, naming the column.
pub(super) fn check(schema: Schema<'_>) -> Result<(), PredictError> {
    if schema.endianness() != Endianness::Little {
        return Err(malformed("big-endian values"));
    }
    let fields = schema
        .fields()
        .ok_or_else(|| malformed("a schema without columns"))?;
    let mut left = MAX_FIELDS;
    for field in fields {
        check_column(field, &mut left).map_err(|what| {
            let name: String = field
                .name()
                .unwrap_or_default()
                .chars()
                .filter(|c| !c.is_control())
                .take(64)
                .collect();
            PredictError::invalid(format!("column '{name}' has {what}"))
        })?;
    }
    Ok(())
}

/// A top-level column may use a dictionary of values that are not lists.
fn check_column(field: Field<'_>, left: &mut usize) -> Result<(), Refusal> {
    let Some(dictionary) = field.dictionary() else {
        return check_field(field, MAX_DEPTH, left);
    };
    *left = left.checked_sub(1).ok_or("too many columns before it")?;
    let index = dictionary.indexType();
    if index.is_some_and(|index| !matches!(index.bitWidth(), 8 | 16 | 32 | 64)) {
        return Err(UNKNOWN);
    }
    match field.type_type() {
        Type::Null => Err("a dictionary of nulls; send plain values"),
        _ if known_flat_type(field) => Ok(()),
        _ => Err("a dictionary of values that are not flat; send plain values"),
    }
}

fn check_field(field: Field<'_>, depth: usize, left: &mut usize) -> Result<(), Refusal> {
    *left = left.checked_sub(1).ok_or("too many columns before it")?;
    let depth = depth.checked_sub(1).ok_or("a type nested too deeply")?;
    if field.dictionary().is_some() {
        return Err("a dictionary inside another type; send plain values");
    }
    match field.type_type() {
        Type::List => check_item(field, depth, left),
        Type::FixedSizeList => {
            let size = field.type_as_fixed_size_list().map(|list| list.listSize());
            if size.is_none_or(|size| size < 0) {
                return Err("a fixed-size list of negative size");
            }
            check_item(field, depth, left)
        }
        Type::Struct_ => field
            .children()
            .into_iter()
            .flatten()
            .try_for_each(|child| check_field(child, depth, left)),
        Type::LargeList => Err("the type large_list; use list"),
        Type::Utf8View => Ok(()),
        Type::Union
        | Type::Map
        | Type::RunEndEncoded
        | Type::ListView
        | Type::LargeListView
        | Type::BinaryView => Err("a type that this service does not support"),
        _ => known_flat_type(field).then_some(()).ok_or(UNKNOWN),
    }
}

fn check_item(field: Field<'_>, depth: usize, left: &mut usize) -> Result<(), Refusal> {
    match field.children() {
        Some(children) if children.len() == 1 => check_field(children.get(0), depth, left),
        _ => Err("a list without exactly one type of item"),
    }
}

/// Whether Arrow's reader supports every property of this type.
fn known_flat_type(field: Field<'_>) -> bool {
    match field.type_type() {
        Type::Null
        | Type::Bool
        | Type::Binary
        | Type::LargeBinary
        | Type::Utf8
        | Type::LargeUtf8 => true,
        Type::Int => field
            .type_as_int()
            .is_some_and(|int| matches!(int.bitWidth(), 8 | 16 | 32 | 64)),
        Type::FloatingPoint => field.type_as_floating_point().is_some_and(|float| {
            matches!(
                float.precision(),
                Precision::HALF | Precision::SINGLE | Precision::DOUBLE
            )
        }),
        Type::FixedSizeBinary => field
            .type_as_fixed_size_binary()
            .is_some_and(|binary| binary.byteWidth() >= 0),
        Type::Date => field
            .type_as_date()
            .is_some_and(|date| matches!(date.unit(), DateUnit::DAY | DateUnit::MILLISECOND)),
        Type::Time => field.type_as_time().is_some_and(|time| {
            matches!(
                (time.bitWidth(), time.unit()),
                (32, TimeUnit::SECOND | TimeUnit::MILLISECOND)
                    | (64, TimeUnit::MICROSECOND | TimeUnit::NANOSECOND)
            )
        }),
        Type::Timestamp => field
            .type_as_timestamp()
            .is_some_and(|timestamp| known_unit(timestamp.unit())),
        Type::Duration => field
            .type_as_duration()
            .is_some_and(|duration| known_unit(duration.unit())),
        Type::Interval => field.type_as_interval().is_some_and(|interval| {
            matches!(
                interval.unit(),
                IntervalUnit::YEAR_MONTH | IntervalUnit::DAY_TIME | IntervalUnit::MONTH_DAY_NANO
            )
        }),
        Type::Decimal => field.type_as_decimal().is_some_and(|decimal| {
            matches!(decimal.bitWidth(), 32 | 64 | 128 | 256)
                && (1..=76).contains(&decimal.precision())
                && (-76..=76).contains(&decimal.scale())
        }),
        _ => false,
    }
}

fn known_unit(unit: TimeUnit) -> bool {
    matches!(
        unit,
        TimeUnit::SECOND | TimeUnit::MILLISECOND | TimeUnit::MICROSECOND | TimeUnit::NANOSECOND
    )
}
