//! The egress policy: which URLs chosen by users a node may call. Pure: it checks the URL as
//! written, in every spelling of its host. Callers check the addresses that a name resolves to.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use url::{Host, Url};

use crate::address::may_be_called;
use crate::error::PredictError;

/// The longest URL, in bytes.
const MAX_URL_BYTES: usize = 8 << 10;

/// Host names of cloud metadata services; never called.
const METADATA_NAMES: [&str; 5] = [
    "metadata",
    "metadata.goog",
    "metadata.google.internal",
    "instance-data",
    "instance-data.ec2.internal",
];

/// Names that always resolve to this machine.
const LOCAL_NAMES: [&str; 6] = [
    "localhost",
    "localhost.localdomain",
    "localhost4",
    "localhost6",
    "ip6-localhost",
    "ip6-loopback",
];

/// An allowed host: one name or address, or all names below a domain, written `*.example.org`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPattern {
    below: bool,
    host: String,
}

impl FromStr for HostPattern {
    type Err = PredictError;

    fn from_str(text: &str) -> Result<Self, PredictError> {
        let wrong = || {
            PredictError::invalid(format!(
                "'{text}' is not a host; give a name or an address without scheme, port and path, \
                 or '*.' and a name for all its subdomains"
            ))
        };
        let (below, host) = match text.strip_prefix("*.") {
            Some(host) => (true, host),
            None => (false, text),
        };
        // An IPv6 address may be written with or without brackets.
        let host = match host.parse() {
            Ok(IpAddr::V6(address)) => Host::Ipv6(address),
            _ => Host::parse(host).map_err(|_| wrong())?,
        };
        let is_name = matches!(host, Host::Domain(_));
        if below && !is_name {
            return Err(wrong());
        }
        let host = canonical(&host);
        if is_name && !host.chars().all(is_plain) {
            return Err(wrong());
        }
        Ok(Self { below, host })
    }
}

impl HostPattern {
    /// Whether the pattern matches `host`, in the form that [`canonical`] returns.
    fn fits(&self, host: &str) -> bool {
        match self.below {
            true => host
                .strip_suffix(self.host.as_str())
                .is_some_and(|before| before.len() > 1 && before.ends_with('.')),
            false => host == self.host,
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let below = if self.below { "*." } else { "" };
        write!(f, "{below}{}", self.host)
    }
}

/// The canonical spelling of a host: lower case, without the root dot, addresses normalized.
fn canonical<S: AsRef<str>>(host: &Host<S>) -> String {
    match host {
        Host::Domain(name) => {
            let name = name.as_ref();
            let name = name.strip_suffix('.').unwrap_or(name);
            name.to_ascii_lowercase()
        }
        Host::Ipv4(address) => address.to_string(),
        Host::Ipv6(address) => address.to_string(),
    }
}

/// Whether `c` may occur in a resolvable name.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.".contains(c)
}

/// Which hosts connectors and HTTP model sources may use. The default allows all hosts and private
/// addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EgressPolicy {
    /// Whether private and loopback addresses may be called. Link-local addresses, which serve
    /// cloud metadata, are never allowed.
    pub allow_private: bool,
    /// If set, only these hosts may be called.
    pub allowed_hosts: Option<Vec<HostPattern>>,
}

impl Default for EgressPolicy {
    fn default() -> Self {
        Self {
            allow_private: true,
            allowed_hosts: None,
        }
    }
}

impl EgressPolicy {
    /// Parses `url` and checks it without resolving the host. `whose` is the subject of the error
    /// message, for example "the connector's URL".
    ///
    /// # Errors
    /// `InvalidInput` when the URL is malformed or not allowed. The message never repeats the URL.
    pub fn check(&self, whose: &str, url: &str) -> Result<Url, PredictError> {
        let refuse = |what: &str| PredictError::invalid(format!("{whose} {what}"));
        if MAX_URL_BYTES < url.len() {
            return Err(refuse("is too long"));
        }
        // URL parsers disagree about these characters.
        if url
            .chars()
            .any(|c| c.is_control() || c.is_whitespace() || c == '\\')
        {
            return Err(refuse("has a space, a backslash or a control character"));
        }
        let parsed = Url::parse(url).map_err(|_| {
            refuse("is malformed; write https://host/path, an IPv6 address in brackets and without a zone")
        })?;
        self.check_parsed(whose, &parsed)?;
        Ok(parsed)
    }

    /// Like [`EgressPolicy::check`], for a parsed URL.
    ///
    /// # Errors
    /// As for [`EgressPolicy::check`].
    pub fn check_parsed(&self, whose: &str, url: &Url) -> Result<(), PredictError> {
        let refuse = |what: &str| Err(PredictError::invalid(format!("{whose} {what}")));
        if !matches!(url.scheme(), "http" | "https") {
            return refuse("must begin with http:// or https://");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return refuse("must not carry a user name or password; use a credential reference");
        }
        let Some(host) = url.host() else {
            return refuse("has no host");
        };
        let name = canonical(&host);
        if let Some(allowed) = &self.allowed_hosts
            && !allowed.iter().any(|pattern| pattern.fits(&name))
        {
            return refuse(
                "names a host that may not be called; an operator can list it in 'allowed_hosts'",
            );
        }
        let address = match host {
            Host::Domain(_) => return self.check_name(whose, &name),
            Host::Ipv4(address) => IpAddr::V4(address),
            Host::Ipv6(address) => IpAddr::V6(address),
        };
        match (
            may_be_called(address, self.allow_private),
            may_be_called(address, true),
        ) {
            (true, _) => Ok(()),
            (false, true) => refuse(PRIVATE),
            (false, false) => refuse(NEVER),
        }
    }

    fn check_name(&self, whose: &str, name: &str) -> Result<(), PredictError> {
        let refuse = |what: &str| Err(PredictError::invalid(format!("{whose} {what}")));
        if !name.chars().all(is_plain) {
            return refuse("has a malformed host");
        }
        if METADATA_NAMES.contains(&name) {
            return refuse(NEVER);
        }
        let local = LOCAL_NAMES.contains(&name) || name.ends_with(".localhost");
        if local && !self.allow_private {
            return refuse(PRIVATE);
        }
        Ok(())
    }
}

const PRIVATE: &str = "names an address of this machine or of a private network, which may not be \
                       called; use a public server, or ask an operator to set 'allow_private'";
const NEVER: &str = "names an address that is never called: link-local, multicast, reserved, or a \
                     cloud's metadata service";

#[cfg(test)]
mod tests;
