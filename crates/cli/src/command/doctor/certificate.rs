//! From when a certificate is valid until when: the one field that is read of it, by hand.

use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERAL_TIME: u8 = 0x18;

/// Beginning and end of the first certificate of a PEM file; `None` when there is none that can be
/// read.
pub(super) fn validity(pem: &[u8]) -> Option<(SystemTime, SystemTime)> {
    let certificate = CertificateDer::pem_slice_iter(pem).next()?.ok()?;
    read(&certificate)
}

fn read(der: &[u8]) -> Option<(SystemTime, SystemTime)> {
    let (SEQUENCE, certificate, _) = element(der)? else {
        return None;
    };
    let (SEQUENCE, mut fields, _) = element(certificate)? else {
        return None;
    };
    if fields.first() == Some(&VERSION) {
        fields = element(fields)?.2;
    }
    // Serial number, signature's algorithm, issuer; then the validity.
    for _ in 0..3 {
        fields = element(fields)?.2;
    }
    let (SEQUENCE, validity, _) = element(fields)? else {
        return None;
    };
    let (begins, rest) = moment(validity)?;
    let (ends, _) = moment(rest)?;
    Some((begins, ends))
}

/// The time that comes first, and what follows it.
fn moment(der: &[u8]) -> Option<(SystemTime, &[u8])> {
    let (tag, text, rest) = element(der)?;
    Some((time(tag, std::str::from_utf8(text).ok()?)?, rest))
}

/// The first element's tag and content, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let length = digits
                .iter()
                .fold(0, |length, digit| (length << 8) | usize::from(*digit));
            (length, rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`.
fn time(tag: u8, text: &str) -> Option<SystemTime> {
    let (year, rest) = match tag {
        UTC_TIME => {
            let (year, rest) = text.split_at_checked(2)?;
            let year: u64 = year.parse().ok()?;
            (
                if year < 50 {
                    2_000 + year
                } else {
                    1_900 + year
                },
                rest,
            )
        }
        GENERAL_TIME => {
            let (year, rest) = text.split_at_checked(4)?;
            (year.parse().ok()?, rest)
        }
        _ => return None,
    };
    let rest = rest.strip_suffix('Z')?;
    let field = |at: usize| rest.get(at..at + 2)?.parse::<u64>().ok();
    let written = format!(
        "{year:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        field(0)?,
        field(2)?,
        field(4)?,
        field(6)?,
        field(8)?
    );
    // Certificates without an end say 9999, which is beyond what times are written in.
    match humantime::parse_rfc3339(&written) {
        Ok(time) => Some(time),
        Err(_) if year == 9_999 => {
            SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(253_402_300_799))
        }
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_forms_of_time_are_read() {
        let seconds = |tag, text| {
            let time = time(tag, text)?;
            Some(
                time.duration_since(SystemTime::UNIX_EPOCH)
                    .unwrap()
                    .as_secs(),
            )
        };
        assert_eq!(seconds(UTC_TIME, "491231235959Z"), Some(2_524_607_999));
        assert_eq!(
            seconds(GENERAL_TIME, "20500101000000Z"),
            Some(2_524_608_000)
        );
        assert_eq!(
            seconds(GENERAL_TIME, "99991231235959Z"),
            Some(253_402_300_799)
        );
        assert_eq!(seconds(UTC_TIME, "4912312359"), None);
        assert_eq!(seconds(0x04, "491231235959Z"), None);
    }

    proptest! {
        #[test]
        fn nonsense_is_no_certificate(bytes: Vec<u8>) {
            let _ = read(&bytes);
            let _ = validity(&bytes);
        }

        #[test]
        fn a_damaged_certificate_never_panics(at: prop::sample::Index, with: u8) {
            let made = rcgen::generate_simple_self_signed(vec!["x".to_owned()]).unwrap();
            let mut der = made.cert.der().to_vec();
            let at = at.index(der.len());
            der[at] = with;
            let _ = read(&der);
        }
    }
}
