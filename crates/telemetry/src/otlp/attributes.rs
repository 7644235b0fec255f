//! Attributes of OTLP messages.

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};

pub(crate) fn text(key: &str, value: impl Into<String>) -> KeyValue {
    pair(key, Value::StringValue(value.into()))
}

pub(crate) fn number(key: &str, value: u64) -> KeyValue {
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    pair(key, Value::IntValue(value))
}

fn pair(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}
