//! Entry point for fuzzers of tensors.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema};
use bytes::Bytes;
use serde_json::{Map, Value};
use volley_types::Signature;

use super::{binary, tensors};

/// Parses a request. `volley_gateway::fuzzing::tensors` describes the format of `bytes`.
pub fn tensors(bytes: &[u8]) {
    let Some(([which, low, high], rest)) = bytes.split_first_chunk::<3>() else {
        return;
    };
    let length = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
    let (json, raw) = rest.split_at(length);
    let item = |data_type| Arc::new(Field::new("item", data_type, false));
    let kinds = [
        DataType::FixedSizeList(item(DataType::Float32), 2),
        DataType::List(item(DataType::Float16)),
        DataType::Utf8,
        DataType::Int64,
        DataType::Boolean,
    ];
    let kind = kinds[usize::from(*which) % kinds.len()].clone();
    let schema = match which % 7 {
        6 => Signature::embed(2).input,
        _ => Arc::new(Schema::new(vec![Field::new("x", kind, false)])),
    };
    let raw = Bytes::copy_from_slice(raw);
    if let Ok(Value::Array(inputs)) = serde_json::from_slice(json) {
        let read = tensors::rows(&inputs, raw.clone(), &schema);
        if let Ok(rows) = read {
            assert!(rows.batch.num_columns() <= schema.fields().len());
        }
        let body = Map::from_iter([("inputs".to_owned(), Value::Array(inputs))]);
        drop(binary::told(body, raw.clone()));
    }
    drop(binary::text(&raw));
    let _ = tensors::raw_rows(raw, &schema);
}
