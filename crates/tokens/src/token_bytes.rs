//! The bytes of each token in a vocabulary.

use tokenizers::{AddedToken, Tokenizer};

/// Prefix of the bytes of special tokens. No UTF-8 text contains this byte.
pub const SPECIAL: u8 = 0xff;

/// The bytes of all tokens, by id.
pub struct TokenBytes(Vec<Vec<u8>>);

impl TokenBytes {
    /// Computes the bytes of `vocabulary` tokens. Takes about 100 ms for 100,000 tokens.
    pub fn new(tokenizer: &Tokenizer, vocabulary: usize) -> Self {
        let added = tokenizer.get_added_tokens_decoder();
        let byte_level = is_byte_level(tokenizer);
        let ids = 0..u32::try_from(vocabulary).unwrap_or(u32::MAX);
        let bytes = ids.map(|id| {
            let token = tokenizer.id_to_token(id);
            token.map_or_else(Vec::new, |token| {
                token_bytes(token, added.get(&id), byte_level)
            })
        });
        Self(bytes.collect())
    }

    /// The bytes of all tokens, indexed by id. Those of special tokens have the prefix [`SPECIAL`].
    pub fn all(&self) -> &[Vec<u8>] {
        &self.0
    }

    /// The bytes of one token, or the name of a special token. Empty for unknown ids.
    pub fn of(&self, id: u32) -> &[u8] {
        let bytes = self.0.get(id as usize).map_or(&[][..], Vec::as_slice);
        bytes.strip_prefix(&[SPECIAL]).unwrap_or(bytes)
    }
}

fn token_bytes(token: String, added: Option<&AddedToken>, byte_level: bool) -> Vec<u8> {
    match added {
        Some(added) if added.special => {
            let mut bytes = vec![SPECIAL];
            bytes.extend_from_slice(token.as_bytes());
            bytes
        }
        Some(_) => token.into_bytes(),
        None if byte_level => token.chars().filter_map(byte_of).collect(),
        None => match token
            .strip_prefix("<0x")
            .and_then(|hex| hex.strip_suffix('>'))
        {
            Some(hex) if hex.len() == 2 => {
                u8::from_str_radix(hex, 16).map_or_else(|_| token.into_bytes(), |byte| vec![byte])
            }
            _ => token.replace('\u{2581}', " ").into_bytes(),
        },
    }
}

fn is_byte_level(tokenizer: &Tokenizer) -> bool {
    matches!(
        tokenizer.get_decoder(),
        Some(tokenizers::DecoderWrapper::ByteLevel(_))
    )
}

/// The byte of a character in a byte-level vocabulary (GPT-2): printable bytes map to themselves,
/// the others in order to the characters from U+0100.
fn byte_of(character: char) -> Option<u8> {
    let printable = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let code = u32::from(character);
    if let Ok(byte) = u8::try_from(code) {
        return printable(byte).then_some(byte);
    }
    let index = usize::try_from(code.checked_sub(256)?).ok()?;
    (0..=255).filter(|byte| !printable(*byte)).nth(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_character() {
        let mut bytes: Vec<_> = (0..=u32::from('\u{143}'))
            .filter_map(char::from_u32)
            .filter_map(byte_of)
            .collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!((byte_of('Ġ'), byte_of('a')), (Some(b' '), Some(b'a')));
    }
}
