//! Egress checks of resolved addresses. The resolver does not see IP addresses in URLs, which
//! [`volley_types::egress::EgressPolicy`] checks.

use std::error::Error;
use std::fmt;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use volley_types::address::may_be_called;

/// Error: the host has addresses, but none of them is allowed.
#[derive(Debug)]
pub struct EgressDenied;

impl fmt::Display for EgressDenied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the egress policy allows no address of this host")
    }
}

impl Error for EgressDenied {}

/// Resolves names with the system's resolver and removes addresses that are not allowed.
#[derive(Clone, Copy, Debug)]
pub struct CheckedResolver {
    allow_private: bool,
}

impl CheckedResolver {
    /// Creates a resolver that removes private and loopback addresses, unless `allow_private` is
    /// true. Link-local addresses are always removed.
    pub fn new(allow_private: bool) -> Self {
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
                return Err(EgressDenied.into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_of_forbidden_addresses_do_not_resolve() {
        let resolve = |allow_private| {
            CheckedResolver::new(allow_private).resolve("localhost".parse().unwrap())
        };
        assert!(resolve(true).await.is_ok());
        assert!(resolve(false).await.is_err());
    }
}
