//! Validity of certificates, for warnings before they expire.

use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

/// The validity period of a certificate (RFC 5280, section 4.1.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Start of validity.
    pub begins: SystemTime,
    /// End of validity.
    pub ends: SystemTime,
}

/// Purpose of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CertificateUse {
    /// TLS for REST clients.
    Edge,
    /// TLS between nodes: the certificate of this node.
    Node,
    /// TLS between nodes: the certificate of the cluster's CA.
    Authority,
}

impl CertificateUse {
    /// The value in metric labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Edge => "edge",
            Self::Node => "node",
            Self::Authority => "authority",
        }
    }
}

/// The validity of the first certificate in a PEM file; `None` if it has no readable certificate.
#[must_use]
pub fn validity(pem: &[u8]) -> Option<Validity> {
    let certificate = CertificateDer::pem_slice_iter(pem).next()?.ok()?;
    read(&certificate)
}

/// The earliest expiry in a chain. The chain is invalid afterwards.
pub(crate) fn first_end(chain: &[CertificateDer<'_>]) -> Option<SystemTime> {
    chain.iter().filter_map(|it| Some(read(it)?.ends)).min()
}

/// The latest expiry of several CA certificates: an old one may be listed with its successor.
pub(crate) fn last_end(authorities: &[CertificateDer<'_>]) -> Option<SystemTime> {
    let ends = authorities.iter().filter_map(|it| Some(read(it)?.ends));
    ends.max()
}

fn read(der: &[u8]) -> Option<Validity> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let validity = certificate.validity();
    Some(Validity {
        begins: time(validity.not_before)?,
        ends: time(validity.not_after)?,
    })
}

fn time(time: ASN1Time) -> Option<SystemTime> {
    let seconds = time.timestamp();
    let distance = Duration::from_secs(seconds.unsigned_abs());
    match seconds < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(distance),
        false => SystemTime::UNIX_EPOCH.checked_add(distance),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    /// A certificate that is valid from January 1 of `begins` to January 1 of `ends`.
    fn of_years(begins: i32, ends: i32) -> rcgen::Certificate {
        let mut params = CertificateParams::new(vec!["x".to_owned()]).unwrap();
        params.not_before = date_time_ymd(begins, 1, 1);
        params.not_after = date_time_ymd(ends, 1, 1);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap()
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    // RFC 5280 requires two-digit years until 2049 and four-digit years afterwards.
    #[test]
    fn both_forms_of_time_are_read() {
        let pem = of_years(2_049, 2_050).pem();
        let found = validity(pem.as_bytes()).unwrap();
        assert_eq!(found.begins, at(2_493_072_000));
        assert_eq!(found.ends, at(2_524_608_000));
        let endless = of_years(1_950, 9_999);
        let found = read(endless.der()).unwrap();
        assert!(found.begins < SystemTime::UNIX_EPOCH);
        assert_eq!(found.ends, at(253_370_764_800));
    }

    #[test]
    fn a_chain_ends_with_its_first_and_authorities_with_their_last() {
        let chain = [of_years(2_020, 2_030), of_years(2_020, 2_025)];
        let chain = chain.map(|it| it.der().clone());
        assert_eq!(first_end(&chain), Some(at(1_735_689_600)));
        assert_eq!(last_end(&chain), Some(at(1_893_456_000)));
        assert_eq!(first_end(&[]), None);
    }

    proptest! {
        #[test]
        fn nonsense_is_no_certificate(bytes: Vec<u8>) {
            prop_assert_eq!(read(&bytes), None);
            prop_assert_eq!(validity(&bytes), None);
        }

        #[test]
        fn a_damaged_certificate_never_panics(at: prop::sample::Index, with: u8) {
            let mut der = of_years(2_020, 2_030).der().to_vec();
            let at = at.index(der.len());
            der[at] = with;
            let _ = read(&der);
        }
    }
}
