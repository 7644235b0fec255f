//! The part of MessagePack that Airport's messages need, written only.

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// Nothing.
    Nil,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Uint(u64),
    /// Text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
    /// Values in order.
    Array(Vec<Value>),
    /// Values by name, in order.
    Map(Vec<(&'static str, Value)>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// The bytes of `value`.
pub(crate) fn encode(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(value, &mut bytes);
    bytes
}

fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Nil => out.push(0xc0),
        Value::Bool(value) => out.push(if *value { 0xc3 } else { 0xc2 }),
        Value::Uint(value) => {
            out.push(0xcf);
            out.extend(value.to_be_bytes());
        }
        Value::Text(text) => {
            length(0xdb, text.len(), out);
            out.extend(text.as_bytes());
        }
        Value::Bytes(bytes) => {
            length(0xc6, bytes.len(), out);
            out.extend(bytes);
        }
        Value::Array(values) => {
            length(0xdd, values.len(), out);
            values.iter().for_each(|value| write(value, out));
        }
        Value::Map(pairs) => {
            length(0xdf, pairs.len(), out);
            for (name, value) in pairs {
                write(&Value::from(*name), out);
                write(value, out);
            }
        }
    }
}

/// The longest form of each kind, whose length has 32 bits: messages are far below that.
fn length(kind: u8, length: usize, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend(u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_bytes_of_the_specification() {
        let value = Value::Map(vec![
            ("a", Value::Array(vec![Value::Nil, Value::Bool(true)])),
            ("b", Value::Uint(258)),
            ("c", Value::Bytes(vec![7])),
        ]);
        let expected = [
            &[0xdf, 0, 0, 0, 3, 0xdb, 0, 0, 0, 1, b'a'][..],
            &[0xdd, 0, 0, 0, 2, 0xc0, 0xc3],
            &[0xdb, 0, 0, 0, 1, b'b', 0xcf, 0, 0, 0, 0, 0, 0, 1, 2],
            &[0xdb, 0, 0, 0, 1, b'c', 0xc6, 0, 0, 0, 1, 7],
        ];
        assert_eq!(encode(&value), expected.concat());
    }
}
