//! Where calls may go. A resolver alone is not enough: addresses written as such never reach
//! it, so the URL's host is checked as well.

use std::error::Error;
use std::fmt;
use std::net::IpAddr;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};
use volley_types::PredictError;
use volley_types::address::may_be_called;

use crate::RemoteConfig;

/// Checks a connector's URL against the policy, as far as that can be told before resolving.
///
/// # Errors
/// `InvalidInput` saying what is not allowed.
pub(crate) fn check_url(url: &Url, config: &RemoteConfig) -> Result<(), PredictError> {
    let refuse = |what: &str| Err(PredictError::invalid(format!("the connector's URL {what}")));
    if !matches!(url.scheme(), "http" | "https") {
        return refuse("must begin with http:// or https://");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return refuse("must not carry a user name or password; use a credential reference");
    }
    let Some(host) = url.host() else {
        return refuse("has no host");
    };
    if let Some(allowed) = &config.allowed_hosts
        && !allowed
            .iter()
            .any(|allowed| allowed.eq_ignore_ascii_case(&host.to_string()))
    {
        return refuse("names a host that this worker may not call");
    }
    let address = match host {
        Host::Domain(_) => return Ok(()),
        Host::Ipv4(address) => IpAddr::V4(address),
        Host::Ipv6(address) => IpAddr::V6(address),
    };
    if may_be_called(address, config.allow_private) {
        return Ok(());
    }
    refuse("names an address that this worker may not call")
}

/// The resolver found addresses, and none that may be called.
#[derive(Debug)]
pub(crate) struct Forbidden;

impl fmt::Display for Forbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no address of this host may be called")
    }
}

impl Error for Forbidden {}

/// Resolves with the system's resolver and leaves out what may not be called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckedResolver {
    allow_private: bool,
}

impl CheckedResolver {
    pub(crate) fn new(allow_private: bool) -> Self {
        Self { allow_private }
    }
}

impl Resolve for CheckedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let allow_private = self.allow_private;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed: Vec<_> = found
                .filter(|address| may_be_called(address.ip(), allow_private))
                .collect();
            if allowed.is_empty() {
                return Err(Forbidden.into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(url: &str, allow_private: bool) -> bool {
        let config = RemoteConfig {
            allow_private,
            ..RemoteConfig::default()
        };
        check_url(&Url::parse(url).unwrap(), &config).is_ok()
    }

    #[test]
    fn machines_secrets_are_never_called_and_private_addresses_when_allowed() {
        for never in [
            "http://169.254.169.254/latest",
            "http://[fe80::1]/",
            "http://0.0.0.0/",
            "http://[::]/",
            "http://[::ffff:169.254.169.254]/",
            "http://[64:ff9b::a9fe:a9fe]/",
            "http://224.0.0.1/",
            "ftp://example.org/",
            "http://user:secret@example.org/",
            "http://2852039166/",
            "http://[::169.254.169.254]/",
            "http://[2002:a9fe:a9fe::]/",
            "http://[fd00:ec2::254]/",
            "http://100.100.100.200/",
            "http://168.63.129.16/",
        ] {
            assert!(!check(never, true), "{never}");
        }
        for private in [
            "http://127.0.0.1/",
            "http://localhost.localdomain./",
            "http://10.1.2.3/",
            "http://192.168.0.1/",
            "http://[::1]/",
            "http://[fd00::1]/",
            "http://0x7f.1/",
            "http://100.64.0.1/",
        ] {
            assert!(check(private, true), "{private}");
            assert_eq!(
                check(private, false),
                private.contains("localhost"),
                "{private}"
            );
        }
        assert!(check("https://api.example.org/v1/chat/completions", false));
    }

    #[test]
    fn only_listed_hosts_are_called_where_there_is_a_list() {
        let config = RemoteConfig {
            allowed_hosts: Some(vec!["api.example.org".to_owned()]),
            ..RemoteConfig::default()
        };
        let check = |url: &str| check_url(&Url::parse(url).unwrap(), &config).is_ok();
        assert!(check("https://API.example.org/v1"));
        assert!(!check("https://other.example.org/v1"));
    }

    #[tokio::test]
    async fn names_of_forbidden_addresses_do_not_resolve() {
        let resolve = |allow_private| {
            CheckedResolver::new(allow_private).resolve("localhost".parse().unwrap())
        };
        assert!(resolve(true).await.is_ok());
        assert!(resolve(false).await.is_err());
    }
}
