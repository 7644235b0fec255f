//! MessagePack, in which Airport's messages are.

pub(crate) use rmpv::Value;

/// A map of these fields, in this order.
pub(crate) fn map<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let fields = fields.into_iter();
    Value::Map(fields.map(|(name, value)| (name.into(), value)).collect())
}

/// The bytes of `value`.
pub(crate) fn encode(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A vector takes whatever is written.
    let _ = rmpv::encode::write_value(&mut bytes, value);
    bytes
}
