//! Checks of record batch headers, before Arrow's reader sees them.

use arrow_ipc::{FieldNode, RecordBatch as BatchHeader};
use arrow_schema::{DataType, Schema};
use volley_types::{ErrorCode, PredictError};

use super::malformed;
use crate::MAX_ROWS;

/// Checks a record batch's header: the row count, the nodes and buffers of the schema, buffers
/// inside the body and of sufficient length, and no compression.
///
/// # Errors
/// `InvalidInput`, or `TooLarge` for too many rows.
pub(super) fn check_batch(
    header: &BatchHeader<'_>,
    body_bytes: usize,
    schema: &Schema,
) -> Result<(), PredictError> {
    if header.compression().is_some() {
        return Err(PredictError::invalid(
            "compressed record batches are not accepted; send them uncompressed",
        ));
    }
    let rows = usize::try_from(header.length())
        .map_err(|_| malformed("a record batch of negative length"))?;
    if rows > MAX_ROWS {
        return Err(PredictError::new(
            ErrorCode::TooLarge,
            format!("a record batch holds more than {MAX_ROWS} rows; send several batches"),
        ));
    }
    let mut walk = Walk {
        nodes: header.nodes().into_iter().flatten().copied().collect(),
        buffers: buffers(header, body_bytes)?,
        variadic: header
            .variadicBufferCounts()
            .into_iter()
            .flatten()
            .collect(),
        next_node: 0,
        next_buffer: 0,
        next_variadic: 0,
    };
    for field in schema.fields() {
        let column = walk.column(field.data_type())?;
        if column != rows {
            return Err(malformed("a column whose length is not the batch's"));
        }
    }
    let all = walk.next_buffer == walk.buffers.len() && walk.next_variadic == walk.variadic.len();
    if walk.next_node != walk.nodes.len() || !all {
        return Err(malformed("more columns or buffers than its schema has"));
    }
    Ok(())
}

/// The lengths of the buffers in bytes. Each buffer must be inside the body.
fn buffers(header: &BatchHeader<'_>, body_bytes: usize) -> Result<Vec<usize>, PredictError> {
    header
        .buffers()
        .into_iter()
        .flatten()
        .map(|buffer| {
            let offset = usize::try_from(buffer.offset()).ok()?;
            let length = usize::try_from(buffer.length()).ok()?;
            (offset.checked_add(length)? <= body_bytes).then_some(length)
        })
        .collect::<Option<_>>()
        .ok_or_else(|| malformed("a buffer outside of its body"))
}

/// Cursor over nodes and buffers in the order of Arrow's reader.
struct Walk {
    nodes: Vec<FieldNode>,
    buffers: Vec<usize>,
    /// Number of text buffers of each view column.
    variadic: Vec<i64>,
    next_node: usize,
    next_buffer: usize,
    next_variadic: usize,
}

impl Walk {
    /// Checks one column with all its children; returns its length in rows.
    fn column(&mut self, data_type: &DataType) -> Result<usize, PredictError> {
        let (length, nulls) = self.node()?;
        match data_type {
            DataType::Null => {
                if nulls != length || length > MAX_ROWS {
                    return Err(malformed("a null column of the wrong length"));
                }
            }
            DataType::Utf8 | DataType::Binary => {
                self.validity(length, nulls)?;
                self.offsets(length, 4)?;
                self.buffer(Some(0))?;
            }
            DataType::LargeUtf8 | DataType::LargeBinary => {
                self.validity(length, nulls)?;
                self.offsets(length, 8)?;
                self.buffer(Some(0))?;
            }
            DataType::Utf8View => {
                self.validity(length, nulls)?;
                self.buffer(length.checked_mul(16))?;
                for _ in 0..self.variadic()? {
                    self.buffer(Some(0))?;
                }
            }
            DataType::List(item) => {
                self.validity(length, nulls)?;
                self.offsets(length, 4)?;
                self.column(item.data_type())?;
            }
            DataType::FixedSizeList(item, size) => {
                self.validity(length, nulls)?;
                let children = self.column(item.data_type())?;
                let size = usize::try_from(*size).ok();
                if size.and_then(|size| size.checked_mul(length)) != Some(children) {
                    return Err(malformed(
                        "a fixed-size list with the wrong number of values",
                    ));
                }
            }
            DataType::Struct(fields) => {
                self.validity(length, nulls)?;
                for field in fields {
                    if self.column(field.data_type())? != length {
                        return Err(malformed("a struct whose fields differ in length"));
                    }
                }
            }
            flat => {
                self.validity(length, nulls)?;
                self.buffer(values_bytes(flat, length)?)?;
            }
        }
        Ok(length)
    }

    fn node(&mut self) -> Result<(usize, usize), PredictError> {
        let node = self
            .nodes
            .get(self.next_node)
            .ok_or_else(|| malformed("fewer columns than its schema has"))?;
        self.next_node += 1;
        match (
            usize::try_from(node.length()),
            usize::try_from(node.null_count()),
        ) {
            (Ok(length), Ok(nulls)) if nulls <= length => Ok((length, nulls)),
            _ => Err(malformed(
                "a column with an impossible length or null count",
            )),
        }
    }

    /// Checks that the next buffer has at least `needed` bytes. `None` means that the required size
    /// overflows.
    fn buffer(&mut self, needed: Option<usize>) -> Result<usize, PredictError> {
        let length = *self
            .buffers
            .get(self.next_buffer)
            .ok_or_else(|| malformed("fewer buffers than its schema has"))?;
        self.next_buffer += 1;
        match needed {
            Some(needed) if needed <= length => Ok(length),
            _ => Err(malformed("a buffer too short for its values")),
        }
    }

    /// Number of text buffers of the next view column.
    fn variadic(&mut self) -> Result<usize, PredictError> {
        let count = self.variadic.get(self.next_variadic).copied();
        self.next_variadic += 1;
        count
            .and_then(|count| usize::try_from(count).ok())
            .ok_or_else(|| malformed("views without the number of their buffers"))
    }

    fn validity(&mut self, length: usize, nulls: usize) -> Result<(), PredictError> {
        let needed = if nulls > 0 { length.div_ceil(8) } else { 0 };
        self.buffer(Some(needed)).map(drop)
    }

    /// Checks the offsets, one more than values; an empty column may omit them.
    fn offsets(&mut self, length: usize, width: usize) -> Result<(), PredictError> {
        let needed = match length {
            0 => Some(0),
            _ => length.checked_add(1).and_then(|n| n.checked_mul(width)),
        };
        if self.buffer(needed)?.is_multiple_of(width) {
            Ok(())
        } else {
            Err(malformed("offsets cut in the middle"))
        }
    }
}

fn values_bytes(flat: &DataType, length: usize) -> Result<Option<usize>, PredictError> {
    Ok(match flat {
        DataType::Boolean => Some(length.div_ceil(8)),
        DataType::FixedSizeBinary(width) => usize::try_from(*width)
            .ok()
            .and_then(|width| width.checked_mul(length)),
        _ => {
            let width = flat
                .primitive_width()
                .ok_or_else(|| malformed("a type that this service does not support"))?;
            width.checked_mul(length)
        }
    })
}
