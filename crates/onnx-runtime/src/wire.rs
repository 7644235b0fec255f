//! Encodes fields of protocol buffers.

/// Encodes a base-128 varint.
pub fn varint(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while 0x80 <= number {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
    out
}

/// Encodes a length-delimited field: a text, bytes or a message.
pub fn field(number: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = varint((number << 3) | 2);
    out.extend(varint(bytes.len() as u64));
    out.extend_from_slice(bytes);
    out
}

/// Encodes a varint field.
pub fn number(number: u64, value: u64) -> Vec<u8> {
    [varint(number << 3), varint(value)].concat()
}
