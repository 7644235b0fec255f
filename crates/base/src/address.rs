//! Which addresses a node may call when the address comes from a user. Pure: callers resolve names.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether `address` may be called. Private and loopback addresses need `allow_private`.
/// Link-local, multicast, reserved and cloud-metadata addresses are never allowed. An IPv6 address
/// that embeds an IPv4 address is also checked as that address.
#[must_use]
pub fn may_be_called(address: IpAddr, allow_private: bool) -> bool {
    match address {
        IpAddr::V4(address) => v4_allowed(address, allow_private),
        IpAddr::V6(address) => {
            let mut inner = embedded_v4(address).into_iter().flatten();
            v6_allowed(address, allow_private) && inner.all(|it| v4_allowed(it, allow_private))
        }
    }
}

/// Metadata services of clouds outside the link-local range.
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
    let benchmarks = a == 198 && (b == 18 || b == 19);
    let protocols = address.octets().starts_with(&[192, 0, 0]);
    // 6to4 relay anycast, deprecated by RFC 7526.
    let relays = address.octets().starts_with(&[192, 88, 99]);
    let private = address.is_private()
        || address.is_loopback()
        || address.is_documentation()
        || shared
        || benchmarks
        || protocols
        || relays;
    !never && (allow_private || !private)
}

fn v6_allowed(address: Ipv6Addr, allow_private: bool) -> bool {
    let never = address.is_unspecified()
        || address.is_multicast()
        || address.is_unicast_link_local()
        || METADATA_V6.contains(&address)
        // Discard-only, 100::/64, and SRv6 segment identifiers, 5f00::/16.
        || address.segments().starts_with(&[0x100, 0, 0, 0])
        || address.segments()[0] == 0x5f00;
    let [first, second, ..] = address.segments();
    let site_local = first & 0xffc0 == 0xfec0;
    // Documentation: RFC 3849 and RFC 9637. IETF protocol assignments: 2001::/23.
    let documentation = (first, second) == (0x2001, 0xdb8) || (first == 0x3fff && second < 0x1000);
    let protocols = first == 0x2001 && second < 0x200;
    let private = address.is_loopback()
        || address.is_unique_local()
        || site_local
        || documentation
        || protocols;
    !never && (allow_private || !private)
}

/// IPv4 addresses embedded in an IPv6 address: mapped, compatible, translated (RFC 2765, NAT64 of
/// RFC 6052 and of RFC 8215), 6to4, Teredo and ISATAP. Where the position of the address is
/// ambiguous, both candidates are returned.
fn embedded_v4(address: Ipv6Addr) -> [Option<Ipv4Addr>; 2] {
    let at = |a: u16, b: u16| Some(Ipv4Addr::from((u32::from(a) << 16) | u32::from(b)));
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, a, b]
        | [0, 0, 0, 0, 0xffff, 0, a, b]
        | [0x64, 0xff9b, 0, 0, 0, 0, a, b] => [at(a, b), None],
        [0x64, 0xff9b, 1, a, b, c, d, e] => {
            let split = at(a, (b << 8) | (c >> 8));
            let last = at(d, e).filter(|_| (d, e) != (0, 0) || a == 0);
            [last, split.filter(|_| a != 0)]
        }
        [0x2002, a, b, ..] => [at(a, b), None],
        // Teredo: the address of the server, and the inverted address of the client.
        [0x2001, 0, a, b, _, _, c, d] => [at(a, b), at(!c, !d)],
        [.., 0 | 0x200, 0x5efe, a, b] => [at(a, b), None],
        // `::` and `::1` are excluded: they embed no IPv4 address.
        [0, 0, 0, 0, 0, 0, a, b] if 1 < (u32::from(a) << 16) | u32::from(b) => [at(a, b), None],
        _ => [None, None],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(address: &str, allow_private: bool) -> bool {
        may_be_called(address.parse().unwrap(), allow_private)
    }

    #[test]
    fn machines_secrets_are_never_called_and_private_addresses_when_allowed() {
        for never in [
            "169.254.169.254",
            "fe80::1",
            "0.0.0.0",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::",
            "fd00:ec2::254",
            "100.100.100.200",
            "64:ff9b:1::a9fe:a9fe",
            "2001:0:1:1::5601:5601",
            "::ffff:0:a9fe:a9fe",
            "2a00::5efe:a9fe:a9fe",
            "100::1",
        ] {
            assert!(!may(never, true), "{never}");
        }
        for private in ["127.0.0.1", "10.1.2.3", "::1", "fd00::1", "::ffff:10.0.0.1"] {
            assert!(may(private, true) && !may(private, false), "{private}");
        }
        for special in [
            "192.0.2.1",
            "198.51.100.1",
            "203.0.113.1",
            "192.88.99.1",
            "2001:db8::1",
            "3fff:fff::1",
            "2001:2::1",
            "2001:20::1",
        ] {
            assert!(may(special, true) && !may(special, false), "{special}");
        }
        for public in [
            "93.184.216.34",
            "2606:2800::1",
            "2001:4860::8888",
            "3fff:1000::1",
        ] {
            assert!(may(public, false), "{public}");
        }
    }
}
