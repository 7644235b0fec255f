//! Converts JSON rows to a column, either from a tree or directly from the text, which needs a
//! fraction of the tree's memory.

use std::fmt;
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_schema::{DataType, Field, Fields};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use volley_types::PredictError;

use super::columns::{self, TensorLayout};
use super::fixed_shape;
use super::leaf::{Leaf, Scalar, leaf};

/// The deepest nesting of one tensor.
const MAX_RANK: usize = 16;

/// Layout of a column's rows.
enum Kind<'f> {
    Plain,
    Fixed {
        item: &'f Arc<Field>,
        size: i32,
        shape: Vec<usize>,
    },
    Variable {
        fields: &'f Fields,
        rank: usize,
        lengths: Vec<usize>,
        dims: Vec<i32>,
    },
}

/// Builder of a column.
pub(super) struct Column<'f> {
    field: &'f Field,
    kind: Kind<'f>,
    leaf: Box<dyn Leaf>,
    rows: usize,
    row: Row,
}

/// State of the current row.
#[derive(Default)]
struct Row {
    /// Nesting depth of its values, after the first value.
    rank: Option<usize>,
    shape: Vec<Option<usize>>,
    /// Values before it.
    start: usize,
    /// Whether the row is null, if it may be.
    null: Option<bool>,
    trouble: Option<String>,
}

impl<'f> Column<'f> {
    /// Creates an empty builder for `field`.
    ///
    /// # Errors
    /// `InvalidInput` if JSON has no values of this type.
    pub(super) fn new(field: &'f Field) -> Result<Self, PredictError> {
        let unsupported =
            || PredictError::invalid(format!("input '{}' cannot be given as JSON", field.name()));
        let (item, kind) = match field.data_type() {
            DataType::FixedSizeList(item, size) => {
                let shape = fixed_shape(field, *size);
                let size = *size;
                (item.as_ref(), Kind::Fixed { item, size, shape })
            }
            DataType::Struct(fields) => {
                let Some((item, TensorLayout::Variable(rank))) = columns::form(field) else {
                    return Err(unsupported());
                };
                let (lengths, dims) = (Vec::new(), Vec::new());
                let kind = Kind::Variable {
                    fields,
                    rank,
                    lengths,
                    dims,
                };
                (item, kind)
            }
            _ => (field, Kind::Plain),
        };
        let leaf = leaf(item).ok_or_else(|| {
            PredictError::invalid(format!(
                "inputs of type {} cannot be given as JSON; use Arrow Flight",
                item.data_type()
            ))
        })?;
        Ok(Self {
            field,
            kind,
            leaf,
            rows: 0,
            row: Row::default(),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.rows
    }

    /// Makes room for so many more values, of so many bytes where they are texts.
    pub(super) fn reserve(&mut self, values: usize, bytes: usize) {
        self.leaf.reserve(values, bytes);
    }

    /// The error for the next row.
    pub(super) fn wrong(&self, what: &str) -> PredictError {
        wrong(self.field.name(), self.rows, what)
    }

    /// What each value must be.
    pub(super) fn wanted(&self) -> String {
        self.leaf.wanted()
    }

    /// Parses the next row from its text. For a `nullable` row, returns whether it was not null.
    pub(super) fn text(&mut self, text: &str, nullable: bool) -> Result<bool, PredictError> {
        self.begin(nullable);
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let read = self.walk(0).deserialize(&mut deserializer);
        if let Err(error) = read {
            let what = format!("is not a JSON value: {error}");
            let what = self.row.trouble.take().unwrap_or(what);
            return Err(self.wrong(&what));
        }
        self.end()
    }

    /// As [`Column::text`], from a tree.
    pub(super) fn tree(&mut self, value: &Value, nullable: bool) -> Result<bool, PredictError> {
        self.begin(nullable);
        let read = self.visit(value, 0);
        read.map_err(|what| self.wrong(&what))?;
        self.end()
    }

    fn begin(&mut self, nullable: bool) {
        self.row.rank = None;
        self.row.shape.clear();
        self.row.start = self.leaf.len();
        self.row.null = nullable.then_some(false);
        self.row.trouble = None;
    }

    fn walk(&mut self, depth: usize) -> Walk<'_, 'f> {
        let column = self;
        Walk { column, depth }
    }

    fn visit(&mut self, value: &Value, depth: usize) -> Result<(), String> {
        let Value::Array(items) = value else {
            return match value {
                Value::Null => self.null(depth),
                value => self.value(Scalar::of(value), depth),
            };
        };
        self.open(depth)?;
        for item in items {
            self.visit(item, depth + 1)?;
        }
        self.close(depth, items.len())
    }

    fn null(&mut self, depth: usize) -> Result<(), String> {
        if depth == 0
            && let Some(null) = &mut self.row.null
        {
            *null = true;
            return Ok(());
        }
        self.value(Scalar::Other, depth)
    }

    fn value(&mut self, value: Scalar<'_>, depth: usize) -> Result<(), String> {
        if *self.row.rank.get_or_insert(depth) != depth {
            return Err(ragged());
        }
        self.leaf.push(value)
    }

    fn open(&mut self, depth: usize) -> Result<(), String> {
        if matches!(self.kind, Kind::Plain) {
            return Err(self.wanted());
        }
        if depth == MAX_RANK {
            return Err("is nested too deep".to_owned());
        }
        if self.row.rank.is_some_and(|rank| rank <= depth) {
            return Err(ragged());
        }
        if self.row.shape.len() == depth {
            self.row.shape.push(None);
        }
        Ok(())
    }

    fn close(&mut self, depth: usize, items: usize) -> Result<(), String> {
        if items == 0 && *self.row.rank.get_or_insert(depth + 1) != depth + 1 {
            return Err(ragged());
        }
        let dim = self.row.shape.get_mut(depth);
        let same = dim.is_some_and(|dim| *dim.get_or_insert(items) == items);
        same.then_some(()).ok_or_else(ragged)
    }

    fn end(&mut self) -> Result<bool, PredictError> {
        if self.row.null == Some(true) {
            return Ok(false);
        }
        let found = self.row.shape.iter().map(|dim| dim.unwrap_or(0));
        let (found, count): (Vec<_>, _) = (found.collect(), self.leaf.len() - self.row.start);
        let trouble = match &mut self.kind {
            Kind::Plain => None,
            Kind::Fixed { size, shape, .. } => {
                // A flat list of the right length is accepted for any shape, and a value for a list
                // of one.
                let flat = found.len() <= 1 && Ok(count) == usize::try_from(*size);
                let fits = flat || found == *shape;
                (!fits).then(|| format!("has shape {found:?}, the model takes {shape:?}"))
            }
            Kind::Variable { rank, .. } if found.len() != *rank => Some(format!(
                "has {} dimensions, the model takes {rank}",
                found.len()
            )),
            Kind::Variable { lengths, dims, .. } => {
                lengths.push(count);
                let own = found.iter().map(|dim| i32::try_from(*dim));
                match own.collect::<Result<Vec<_>, _>>() {
                    Ok(own) => {
                        dims.extend(own);
                        None
                    }
                    Err(_) => Some("is too large".to_owned()),
                }
            }
        };
        if let Some(trouble) = trouble {
            return Err(self.wrong(&trouble));
        }
        self.rows += 1;
        Ok(true)
    }

    /// The whole column.
    ///
    /// # Errors
    /// `InvalidInput` for more values than a column can contain.
    pub(super) fn finish(self) -> Result<ArrayRef, PredictError> {
        let values = self.leaf.finish();
        match self.kind {
            Kind::Plain => Ok(values),
            Kind::Fixed { item, size, .. } => columns::fixed(item, size, self.rows, values),
            Kind::Variable {
                fields,
                lengths,
                dims,
                ..
            } => columns::variable(fields, values, lengths, dims).ok_or_else(|| {
                let name = self.field.name();
                PredictError::invalid(format!("input '{name}' cannot be given as JSON"))
            })?,
        }
    }

    /// A reader of the rows in a list of them.
    pub(super) fn rows(&mut self) -> TextRows<'_, 'f> {
        let failed = None;
        TextRows {
            column: self,
            failed,
        }
    }
}

fn ragged() -> String {
    "is a ragged array".to_owned()
}

fn wrong(input: &str, row: usize, what: &str) -> PredictError {
    PredictError::invalid(format!("input '{input}', row {row}: {what}"))
}

/// Parses one value with all nested values from a text.
struct Walk<'c, 'f> {
    column: &'c mut Column<'f>,
    depth: usize,
}

impl Walk<'_, '_> {
    fn done<E: Error>(&mut self, done: Result<(), String>) -> Result<(), E> {
        done.map_err(|trouble| {
            let error = E::custom(&trouble);
            self.column.row.trouble.get_or_insert(trouble);
            error
        })
    }

    fn scalar<E: Error>(&mut self, value: Scalar<'_>) -> Result<(), E> {
        let done = self.column.value(value, self.depth);
        self.done(done)
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or a list of values")
    }

    fn visit_unit<E: Error>(mut self) -> Result<(), E> {
        let done = self.column.null(self.depth);
        self.done(done)
    }

    fn visit_bool<E: Error>(mut self, value: bool) -> Result<(), E> {
        self.scalar(Scalar::Bool(value))
    }

    fn visit_i64<E: Error>(mut self, value: i64) -> Result<(), E> {
        self.scalar(Scalar::Signed(value))
    }

    fn visit_u64<E: Error>(mut self, value: u64) -> Result<(), E> {
        self.scalar(Scalar::Unsigned(value))
    }

    fn visit_f64<E: Error>(mut self, value: f64) -> Result<(), E> {
        self.scalar(Scalar::Float(value))
    }

    fn visit_str<E: Error>(mut self, value: &str) -> Result<(), E> {
        self.scalar(Scalar::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        let opened = self.column.open(self.depth);
        self.done(opened)?;
        let mut count = 0;
        while items
            .next_element_seed(self.column.walk(self.depth + 1))?
            .is_some()
        {
            count += 1;
        }
        let closed = self.column.close(self.depth, count);
        self.done(closed)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<(), A::Error> {
        self.scalar::<A::Error>(Scalar::Other)?;
        while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

/// Parses the rows of a column from the text of a list.
pub(super) struct TextRows<'c, 'f> {
    column: &'c mut Column<'f>,
    failed: Option<PredictError>,
}

impl TextRows<'_, '_> {
    /// Reads them all.
    ///
    /// # Errors
    /// `InvalidInput` naming the row.
    pub(super) fn read(mut self, text: &str) -> Result<(), PredictError> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let read = deserializer.deserialize_seq(&mut self);
        read.map_err(|error| {
            let what = self.column.row.trouble.take();
            let what = what.unwrap_or_else(|| format!("is not a JSON value: {error}"));
            self.failed.unwrap_or_else(|| self.column.wrong(&what))
        })
    }
}

impl<'de> Visitor<'de> for &mut TextRows<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of rows")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        loop {
            self.column.begin(false);
            if items.next_element_seed(self.column.walk(0))?.is_none() {
                return Ok(());
            }
            if let Err(error) = self.column.end() {
                self.failed = Some(error);
                return Err(A::Error::custom("a row does not fit"));
            }
        }
    }
}

/// The values of a tensor whose rows have `each` values, as one array of the type of `item`.
///
/// # Errors
/// `InvalidInput` naming the input, the row and what a value should be.
pub fn flat_values(
    input: &str,
    item: &Field,
    values: &[&Value],
    each: usize,
) -> Result<ArrayRef, PredictError> {
    let mut leaf = leaf(item).ok_or_else(|| {
        PredictError::invalid(format!(
            "inputs of type {} cannot be given as JSON; use Arrow Flight",
            item.data_type()
        ))
    })?;
    leaf.reserve(values.len(), 0);
    for (index, value) in values.iter().enumerate() {
        let pushed = leaf.push(Scalar::of(value));
        pushed.map_err(|what| wrong(input, index / each.max(1), &what))?;
    }
    Ok(leaf.finish())
}
