//! Envelopes for signed data of a provider in a dialect of another provider. The client keeps an
//! envelope unread and sends it back; the data then go to their original provider. A modified
//! envelope is dropped.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use flate2::Crc;
use serde_json::{Value, json};
use volley_types::Details;

/// Prefix of an envelope.
const MARK: &str = "volley1.";

/// The signature of a reasoning block for a client of the format `own`: unchanged if it has that
/// format, otherwise in an envelope.
pub fn signature(details: &Details, own: &str) -> Option<String> {
    let signature = details.signature.as_deref()?;
    let format = details.format.as_deref().unwrap_or_default();
    Some(match format == own {
        true => signature.to_owned(),
        false => seal(&json!({
            "format": format, "signature": signature, "item": details.item,
        })),
    })
}

/// As [`signature`], for encrypted reasoning.
pub fn redacted(details: &Details, own: &str) -> Option<String> {
    let data = details.redacted.as_deref()?;
    let format = details.format.as_deref().unwrap_or_default();
    Some(match format == own {
        true => data.to_owned(),
        false => seal(&json!({ "format": format, "redacted": data })),
    })
}

fn seal(content: &Value) -> String {
    let content = content.to_string();
    let sum = checksum(content.as_bytes());
    let packed = URL_SAFE_NO_PAD.encode(content);
    format!("{MARK}{sum:08x}.{packed}")
}

/// The reasoning block of a signature (or encrypted data) that a client of the format `own` sends
/// back; `None` for a modified envelope.
pub fn opened(given: &str, name: &str, own: &str) -> Option<Value> {
    let Some(rest) = given.strip_prefix(MARK) else {
        return Some(json!({ "format": own, name: given }));
    };
    let (sum, packed) = rest.split_once('.')?;
    let content = URL_SAFE_NO_PAD.decode(packed).ok()?;
    let same = u32::from_str_radix(sum, 16) == Ok(checksum(&content));
    same.then(|| serde_json::from_slice(&content).ok())?
}

/// Whether it is an envelope, valid or not.
pub fn is_sealed(given: &str) -> bool {
    given.starts_with(MARK)
}

fn checksum(content: &[u8]) -> u32 {
    let mut sum = Crc::new();
    sum.update(content);
    sum.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_is_opened_as_it_was_sealed_and_a_changed_one_is_not() {
        let details = Details {
            format: Some("anthropic".to_owned()),
            signature: Some("c2ln+/=".to_owned()),
            ..Details::default()
        };
        let plain = signature(&details, "anthropic").unwrap();
        assert_eq!(plain, "c2ln+/=");
        let read = opened(&plain, "signature", "anthropic").unwrap();
        assert_eq!(
            read,
            json!({ "format": "anthropic", "signature": "c2ln+/=" })
        );
        let sealed = signature(&details, "openai_responses").unwrap();
        let read = opened(&sealed, "signature", "openai_responses").unwrap();
        assert_eq!(read["signature"], "c2ln+/=");
        for at in MARK.len()..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            let read = opened(&changed, "signature", "x");
            // The last character may have unused bits.
            assert!(
                read.is_none() || read.unwrap()["signature"] == "c2ln+/=",
                "{at}"
            );
        }
    }
}
