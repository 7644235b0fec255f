//! A CA for tests, and the certificates that it signs.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
};

/// A certificate authority.
pub(crate) struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// The paths of a certificate, its key and its CA certificate.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) authority: PathBuf,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self {
            pem: params.self_signed(&key).unwrap().pem(),
            issuer: Issuer::new(params, key),
        }
    }

    /// Writes a certificate for 127.0.0.1 with the identity `uri` to `folder`. Replaces existing
    /// files.
    pub(crate) fn write(&self, folder: &Path, name: &str, uri: Option<&str>) -> Files {
        self.write_until(folder, name, uri, 4_095)
    }

    /// Like [`Authority::write`], with an expiry at the beginning of the year `until`.
    pub(crate) fn write_until(
        &self,
        folder: &Path,
        name: &str,
        uri: Option<&str>,
        until: i32,
    ) -> Files {
        let key = KeyPair::generate().unwrap();
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let uri = uri.map(|uri| SanType::URI(uri.try_into().unwrap()));
        params.subject_alt_names.extend(uri);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = Files {
            certificate: folder.join(format!("{name}.pem")),
            key: folder.join(format!("{name}.key")),
            authority: folder.join(format!("{name}.authority.pem")),
        };
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        std::fs::write(&files.certificate, certificate.pem()).unwrap();
        std::fs::write(&files.authority, &self.pem).unwrap();
        files
    }
}
