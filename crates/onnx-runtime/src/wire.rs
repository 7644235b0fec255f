//! Fields of protocol buffers, written.

/// A whole number, seven bits a byte.
pub fn varint(mut number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while 0x80 <= number {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
    out
}

/// A field of bytes: a text, or a message.
pub fn field(number: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = varint((number << 3) | 2);
    out.extend(varint(bytes.len() as u64));
    out.extend_from_slice(bytes);
    out
}

/// A field of a number.
pub fn number(number: u64, value: u64) -> Vec<u8> {
    [varint(number << 3), varint(value)].concat()
}
