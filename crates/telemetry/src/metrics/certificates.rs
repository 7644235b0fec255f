//! Expiry of a node's certificates.

use std::time::SystemTime;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Metrics;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UseLabel {
    r#use: &'static str,
}

/// Expiry times by use.
#[derive(Default)]
pub(super) struct Certificates(Family<UseLabel, Gauge>);

impl Certificates {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "certificate_expiry_timestamp_seconds",
            "Time at which a certificate in use expires, since 1970; an issuer that expires earlier counts",
            self.0.clone(),
        );
    }
}

impl Metrics {
    /// Sets the expiry time of each certificate of this node, by its use.
    pub fn set_certificate_ends(&self, ends: &[(&'static str, SystemTime)]) {
        for (what, end) in ends {
            let seconds = match end.duration_since(SystemTime::UNIX_EPOCH) {
                Ok(since) => i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
                // The metric cannot represent a time before 1970.
                Err(_) => 0,
            };
            let label = UseLabel { r#use: what };
            self.0.certificates.0.get_or_create(&label).set(seconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_renewed_certificate_has_a_later_end() {
        let metrics = Metrics::new();
        assert!(!metrics.encode().contains("_expiry_timestamp_seconds{"));
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for seconds in [1_900_000_000, 2_000_000_000] {
            metrics.set_certificate_ends(&[("edge", at(seconds)), ("node", at(7))]);
            let text = metrics.encode();
            for line in [
                format!("volley_certificate_expiry_timestamp_seconds{{use=\"edge\"}} {seconds}"),
                "volley_certificate_expiry_timestamp_seconds{use=\"node\"} 7".to_owned(),
            ] {
                assert!(text.lines().any(|it| it == line), "{line}: {text}");
            }
        }
    }
}
