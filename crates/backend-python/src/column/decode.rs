//! Decoding of the columns of an answer.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, FixedSizeListArray, RecordBatch, StringArray, make_array,
};
use arrow_buffer::{
    ArrowNativeType, BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer,
};
use arrow_schema::{DataType, FieldRef, SchemaRef};
use volley_types::{PredictError, octets};

use super::{ALIGN, Column, ValueType, shape, signed, variable};

/// Decodes the columns of an answer.
///
/// # Errors
/// `Internal`, with a description for the model's author, when the columns differ from `expected`
/// or a buffer does not fit.
pub(crate) fn decode(
    columns: &[Column],
    rows: usize,
    body: &Buffer,
    expected: &SchemaRef,
) -> Result<RecordBatch, PredictError> {
    if let Some(extra) = columns
        .iter()
        .find(|column| expected.column_with_name(&column.name).is_none())
    {
        return Err(wrong(&extra.name, "is not one of the declared outputs"));
    }
    let arrays = expected.fields().iter().map(|field| {
        let mut named = columns.iter().filter(|column| column.name == *field.name());
        match (named.next(), named.next()) {
            (Some(column), None) => decode_column(column, rows, body, field),
            (None, _) => Err(wrong(field.name(), "is missing in the answer")),
            (Some(_), Some(_)) => Err(wrong(field.name(), "is in the answer twice")),
        }
    });
    let arrays = arrays.collect::<Result<Vec<_>, _>>()?;
    RecordBatch::try_new(expected.clone(), arrays)
        .map_err(|error| PredictError::internal("the model's answer is malformed", error))
}

fn wrong(name: &str, what: &str) -> PredictError {
    let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
    let message = format!("output column '{name}' of the model {what}");
    PredictError::new(volley_types::ErrorCode::Internal, message)
        .with_origin(volley_types::ErrorOrigin::Model)
}

/// Decodes a column into the type of `field`.
///
/// # Errors
/// As [`decode`].
pub(crate) fn decode_column(
    column: &Column,
    rows: usize,
    body: &Buffer,
    field: &FieldRef,
) -> Result<ArrayRef, PredictError> {
    let reader = Reader { column, rows, body };
    let nulls = reader.nulls()?;
    if nulls.is_some() && !field.is_nullable() {
        return Err(wrong(&column.name, "has nulls, which it does not declare"));
    }
    match field.data_type() {
        DataType::FixedSizeList(item, size) => {
            let declared = shape(field).unwrap_or_else(|| vec![size.as_usize()]);
            if column.shape != signed(&declared) {
                let what = format!("has the shape {:?} and declares {declared:?}", column.shape);
                return Err(wrong(&column.name, &what));
            }
            let count = rows.checked_mul(size.as_usize());
            let count = count.ok_or_else(|| reader.malformed())?;
            let values = reader.values(item.data_type(), count, None)?;
            FixedSizeListArray::try_new(item.clone(), *size, values, nulls)
                .map(|list| Arc::new(list) as ArrayRef)
                .map_err(|_| wrong(&column.name, "has a buffer of the wrong length"))
        }
        DataType::Struct(_) => reader.tensors(field, nulls),
        _ if !column.shape.is_empty() => {
            let what = format!(
                "has the shape {:?} and declares one value per row",
                column.shape
            );
            Err(wrong(&column.name, &what))
        }
        other => reader.values(other, rows, nulls),
    }
}

struct Reader<'a> {
    column: &'a Column,
    rows: usize,
    body: &'a Buffer,
}

impl Reader<'_> {
    fn buffer(&self, index: usize) -> Result<Buffer, PredictError> {
        let (offset, length) = *self.column.at.get(index).ok_or_else(|| self.malformed())?;
        let end = offset.checked_add(length).ok_or_else(|| self.malformed())?;
        if self.body.len() < end || !offset.is_multiple_of(ALIGN) {
            return Err(self.malformed());
        }
        Ok(self.body.slice_with_length(offset, length))
    }

    fn malformed(&self) -> PredictError {
        wrong(&self.column.name, "has a malformed buffer")
    }

    fn nulls(&self) -> Result<Option<NullBuffer>, PredictError> {
        if !self.column.nulls {
            return Ok(None);
        }
        let last = self
            .column
            .at
            .len()
            .checked_sub(1)
            .ok_or_else(|| self.malformed())?;
        let valid = self.buffer(last)?;
        if valid.len() != self.rows {
            return Err(self.malformed());
        }
        let valid = BooleanBuffer::collect_bool(self.rows, |row| valid[row] != 0);
        Ok(Some(NullBuffer::new(valid)))
    }

    /// `count` values of `data_type`.
    fn values(
        &self,
        data_type: &DataType,
        count: usize,
        nulls: Option<NullBuffer>,
    ) -> Result<ArrayRef, PredictError> {
        match data_type {
            DataType::Utf8 => self.texts(count, nulls),
            _ => self.numbers(data_type, count, nulls),
        }
    }

    /// Tensors whose rows have shapes of their own.
    fn tensors(
        &self,
        field: &FieldRef,
        nulls: Option<NullBuffer>,
    ) -> Result<ArrayRef, PredictError> {
        let malformed = || self.malformed();
        let (item, rank) = variable::parts(field.data_type()).ok_or_else(malformed)?;
        if self.column.shape.len() != rank {
            let what = format!(
                "has {} dimensions and declares {rank}",
                self.column.shape.len()
            );
            return Err(wrong(&self.column.name, &what));
        }
        let place = match item.data_type() {
            DataType::Utf8 => 2,
            _ => 1,
        };
        let dims = self.buffer(place)?;
        let count = self.rows.checked_mul(rank).ok_or_else(malformed)?;
        if Some(dims.len()) != count.checked_mul(size_of::<i64>()) {
            return Err(self.malformed());
        }
        let dims = ScalarBuffer::<i64>::new(dims, 0, count);
        let lengths = variable::lengths(field, &dims, self.rows);
        let lengths = lengths.ok_or_else(|| {
            wrong(
                &self.column.name,
                "has a row of another shape than it declares",
            )
        })?;
        let total = lengths
            .iter()
            .try_fold(0, |total: usize, length| total.checked_add(*length));
        let values = self.values(item.data_type(), total.ok_or_else(malformed)?, None)?;
        variable::column(field, values, &lengths, &dims, nulls).ok_or_else(malformed)
    }

    /// `count` numbers of `data_type`.
    fn numbers(
        &self,
        data_type: &DataType,
        count: usize,
        nulls: Option<NullBuffer>,
    ) -> Result<ArrayRef, PredictError> {
        if self.column.value.arrow() != *data_type {
            let what = format!(
                "has the type {} and declares {data_type}",
                self.column.value.arrow()
            );
            return Err(wrong(&self.column.name, &what));
        }
        let values = self.buffer(0)?;
        if *data_type == DataType::Boolean {
            if values.len() != count {
                return Err(self.malformed());
            }
            let flags = BooleanBuffer::collect_bool(count, |at| values[at] != 0);
            return Ok(Arc::new(BooleanArray::new(flags, nulls)));
        }
        let width = data_type
            .primitive_width()
            .ok_or_else(|| self.malformed())?;
        if Some(values.len()) != count.checked_mul(width) {
            return Err(self.malformed());
        }
        let data = arrow_data::ArrayData::builder(data_type.clone())
            .len(count)
            .add_buffer(values)
            .nulls(nulls)
            .build();
        data.map(make_array).map_err(|_| self.malformed())
    }

    /// `count` texts.
    fn texts(&self, count: usize, nulls: Option<NullBuffer>) -> Result<ArrayRef, PredictError> {
        let (offsets, values) = (self.buffer(0)?, self.buffer(1)?);
        let wide = size_of::<i64>();
        if offsets.len() != count.saturating_add(1).saturating_mul(wide) {
            return Err(self.malformed());
        }
        let offsets = ScalarBuffer::<i64>::new(offsets, 0, count + 1);
        let ordered = offsets.windows(2).all(|pair| pair[0] <= pair[1]);
        let end = offsets.last().and_then(|last| usize::try_from(*last).ok());
        if offsets.first() != Some(&0) || !ordered || end != Some(values.len()) {
            return Err(self.malformed());
        }
        match self.column.value {
            ValueType::Utf8 | ValueType::Json => {}
            ValueType::Bytes => return Ok(octets_of(&offsets, &values, nulls.as_ref())),
            other => {
                let what = format!("has the type {} and declares text", other.arrow());
                return Err(wrong(&self.column.name, &what));
            }
        }
        let narrow = offsets.iter().map(|offset| i32::try_from(*offset));
        let narrow = narrow.collect::<Result<Vec<_>, _>>();
        let narrow = narrow.map_err(|_| wrong(&self.column.name, "has more than 2 GiB of text"))?;
        let offsets = OffsetBuffer::new(ScalarBuffer::from(narrow));
        StringArray::try_new(offsets, values, nulls)
            .map(|texts| Arc::new(texts) as ArrayRef)
            .map_err(|_| wrong(&self.column.name, "is not valid UTF-8"))
    }
}

/// Any bytes as texts that stand for them.
fn octets_of(offsets: &[i64], values: &[u8], nulls: Option<&NullBuffer>) -> ArrayRef {
    let texts = offsets.windows(2).enumerate().map(|(at, place)| {
        let valid = nulls.is_none_or(|nulls| nulls.is_valid(at));
        let (start, end) = (place[0].as_usize(), place[1].as_usize());
        valid.then(|| octets::to_text(&values[start..end]))
    });
    Arc::new(texts.collect::<StringArray>())
}
