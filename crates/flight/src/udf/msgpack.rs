//! The part of MessagePack that Airport's messages need, written only.

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MsgpackValue {
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
    Array(Vec<MsgpackValue>),
    /// Values by name, in order.
    Map(Vec<(&'static str, MsgpackValue)>),
}

impl From<&str> for MsgpackValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// The bytes of `value`.
pub(crate) fn encode(value: &MsgpackValue) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(value, &mut bytes);
    bytes
}

fn write(value: &MsgpackValue, out: &mut Vec<u8>) {
    match value {
        MsgpackValue::Nil => out.push(0xc0),
        MsgpackValue::Bool(value) => out.push(if *value { 0xc3 } else { 0xc2 }),
        MsgpackValue::Uint(value) => {
            out.push(0xcf);
            out.extend(value.to_be_bytes());
        }
        MsgpackValue::Text(text) => {
            length(0xdb, text.len(), out);
            out.extend(text.as_bytes());
        }
        MsgpackValue::Bytes(bytes) => {
            length(0xc6, bytes.len(), out);
            out.extend(bytes);
        }
        MsgpackValue::Array(values) => {
            length(0xdd, values.len(), out);
            values.iter().for_each(|value| write(value, out));
        }
        MsgpackValue::Map(pairs) => {
            length(0xdf, pairs.len(), out);
            for (name, value) in pairs {
                write(&MsgpackValue::from(*name), out);
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
        let value = MsgpackValue::Map(vec![
            (
                "a",
                MsgpackValue::Array(vec![MsgpackValue::Nil, MsgpackValue::Bool(true)]),
            ),
            ("b", MsgpackValue::Uint(258)),
            ("c", MsgpackValue::Bytes(vec![7])),
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
