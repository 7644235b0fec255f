//! Where calls may go. A resolver alone is not enough: addresses written as such never reach
//! it, so the URL's host is checked as well.

use std::error::Error;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};
use volley_types::PredictError;

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
    if is_allowed(address, config.allow_private) {
        return Ok(());
    }
    refuse("names an address that this worker may not call")
}

/// Whether an address may be called.
pub(crate) fn is_allowed(address: IpAddr, allow_private: bool) -> bool {
    match address {
        IpAddr::V4(address) => v4_allowed(address, allow_private),
        IpAddr::V6(address) => match embedded_v4(address) {
            Some(inner) => v4_allowed(inner, allow_private),
            None => v6_allowed(address, allow_private),
        },
    }
}

/// Where clouds keep their machines' secrets, beside the link-local addresses.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(192, 0, 0, 192),
];
const METADATA_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

fn v4_allowed(address: Ipv4Addr, allow_private: bool) -> bool {
    let [a, b, ..] = address.octets();
    let never = address.is_unspecified()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_broadcast()
        || a == 0
        || 240 <= a
        || METADATA_V4.contains(&address);
    let shared = a == 100 && (64..128).contains(&b);
    let private = address.is_private() || address.is_loopback() || shared;
    !never && (allow_private || !private)
}

fn v6_allowed(address: Ipv6Addr, allow_private: bool) -> bool {
    let never = address.is_unspecified()
        || address.is_multicast()
        || address.is_unicast_link_local()
        || METADATA_V6.contains(&address);
    let private = address.is_loopback() || address.is_unique_local();
    !never && (allow_private || !private)
}

/// IPv4 addresses in IPv6 clothing: mapped, compatible, translated (NAT64, RFC 6052), 6to4.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let at = |a: u16, b: u16| Some(Ipv4Addr::from((u32::from(a) << 16) | u32::from(b)));
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, a, b] | [0x64, 0xff9b, 0, 0, 0, 0, a, b] => at(a, b),
        [0x2002, a, b, ..] => at(a, b),
        // Below these are `::` and `::1`, which are what they are.
        [0, 0, 0, 0, 0, 0, a, b] if 1 < (u32::from(a) << 16) | u32::from(b) => at(a, b),
        _ => None,
    }
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
                .filter(|address| is_allowed(address.ip(), allow_private))
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
