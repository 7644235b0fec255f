//! Hosts in every spelling.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;

fn policy(allow_private: bool) -> EgressPolicy {
    EgressPolicy {
        allow_private,
        allowed_hosts: None,
    }
}

fn allows(host: &str, allow_private: bool) -> bool {
    let url = format!("http://{host}/v1");
    policy(allow_private).check("it", &url).is_ok()
}

#[test]
fn what_is_no_plain_url_of_a_server_is_refused() {
    for (url, says) in [
        ("ftp://example.org/", "http://"),
        ("file:///etc/passwd", "http://"),
        ("gopher://example.org/", "http://"),
        ("javascript:alert(1)", "http://"),
        ("unix:///run/docker.sock", "http://"),
        ("data:text/plain,x", "http://"),
        ("example.org/v1", "malformed"),
        ("//example.org/v1", "malformed"),
        ("http://", "malformed"),
        ("", "malformed"),
        ("http://user@example.org/", "credential reference"),
        ("http://user:key@example.org/", "credential reference"),
        (
            "http://example.org@169.254.169.254/",
            "credential reference",
        ),
        ("http://:key@example.org/", "credential reference"),
        ("http://[fe80::1%25eth0]/", "malformed"),
        ("http://[fe80::1%eth0]/", "malformed"),
        ("http://exa mple.org/", "space"),
        ("http://example.org\\@127.0.0.1/", "backslash"),
        ("http://example.org\t.evil/", "space"),
        ("http://1.2.3.4.5/", "malformed"),
        ("http://256.1.1.1/", "malformed"),
        ("http://0x100000000/", "malformed"),
        ("http://example.org:99999/", "malformed"),
        ("https://${parameters.host}/", "malformed"),
    ] {
        let refused = policy(true).check("it", url).unwrap_err();
        assert!(refused.message.contains(says), "{url}: {refused}");
        assert!(!refused.message.contains("key@"), "{refused}");
    }
    let long = format!("http://example.org/{}", "x".repeat(MAX_URL_BYTES));
    assert!(policy(true).check("it", &long).is_err());
}

#[test]
fn machines_secrets_are_never_named() {
    for host in [
        "169.254.169.254",
        "169.254.169.254.",
        "2852039166",
        "0xA9FEA9FE",
        "0xa9.0xfe.0xa9.0xfe",
        "0251.0376.0251.0376",
        "025177524776",
        "169.254.43518",
        "169.16689662",
        "%31%36%39.254.169.254",
        "１６９.254.169.254",
        "169。254。169。254",
        "[::ffff:169.254.169.254]",
        "[::FFFF:a9fe:a9fe]",
        "[::169.254.169.254]",
        "[::ffff:0:169.254.169.254]",
        "[64:ff9b::169.254.169.254]",
        "[64:ff9b:1::169.254.169.254]",
        "[64:ff9b:1:a9fe:a9:fe00::]",
        "[2002:a9fe:a9fe::1]",
        "[2001:0:a9fe:a9fe::]",
        "[2001:0:1:1::5601:5601]",
        "[2a00::5efe:a9fe:a9fe]",
        "[fe80::1]",
        "[FE80:0::1]",
        "[fd00:ec2::254]",
        "[::]",
        "0",
        "0.0.0.0",
        "255.255.255.255",
        "224.0.0.1",
        "[ff02::1]",
        "100.100.100.200",
        "168.63.129.16",
        "metadata.google.internal",
        "METADATA.google.internal.",
        "metadata%2egoogle%2einternal",
        "metadata",
        "instance-data",
    ] {
        assert!(!allows(host, true), "{host}");
    }
}

#[test]
fn this_machine_and_private_networks_are_named_where_that_is_allowed() {
    for host in [
        "127.0.0.1",
        "127.1",
        "0x7f.1",
        "0177.0.0.1",
        "2130706433",
        "017700000001",
        "127.0.0.1.",
        "[::1]",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::ffff:0:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.0.1",
        "100.64.0.1",
        "198.18.0.1",
        "192.0.0.1",
        "[fd00::1]",
        "[fec0::1]",
        "localhost",
        "LOCALHOST",
        "LocalHost.",
        "a.b.localhost",
        "localhost.localdomain",
        "ip6-localhost",
        "%6cocalhost",
        "ｌocalhost",
    ] {
        assert!(allows(host, true), "{host}");
        assert!(!allows(host, false), "{host}");
    }
    for public in [
        "example.org",
        "93.184.216.34",
        "[2606:2800::1]",
        "localhost.example.org",
    ] {
        assert!(allows(public, false), "{public}");
    }
}

#[test]
fn only_listed_hosts_are_called_where_there_is_a_list() {
    let listed = [
        "api.example.org",
        "*.models.example",
        "10.0.0.7",
        "2606:2800::1",
    ];
    let policy = EgressPolicy {
        allow_private: true,
        allowed_hosts: Some(listed.map(|host| host.parse().unwrap()).to_vec()),
    };
    let allows = |host: &str| policy.check("it", &format!("https://{host}/v1")).is_ok();
    for host in [
        "api.example.org",
        "API.Example.org.",
        "api.example.org:8443",
        "eu.models.example",
        "a.b.models.example",
        "10.0.0.7",
        "0x0a.7",
        "[2606:2800:0::1]",
    ] {
        assert!(allows(host), "{host}");
    }
    for host in [
        "example.org",
        "xapi.example.org",
        "api.example.org.evil.test",
        "models.example",
        "evilmodels.example",
        ".models.example",
        "10.0.0.8",
    ] {
        assert!(!allows(host), "{host}");
    }
    for bad in [
        "",
        "https://x.test",
        "x.test/path",
        "x.test:80",
        "*.10.0.0.1",
        "*",
        "a b",
    ] {
        assert!(bad.parse::<HostPattern>().is_err(), "{bad}");
    }
}

/// The spellings of an IPv4 address that URL parsers accept.
fn spellings(address: Ipv4Addr) -> Vec<String> {
    let [a, b, c, d] = address.octets();
    let whole = u32::from(address);
    let last_three = whole & 0x00ff_ffff;
    let last_two = whole & 0xffff;
    let v6 = |segments: [u16; 6]| {
        let [e, f, g, h, i, j] = segments;
        let address = Ipv6Addr::new(e, f, g, h, i, j, (whole >> 16) as u16, last_two as u16);
        format!("[{address}]")
    };
    vec![
        format!("{a}.{b}.{c}.{d}"),
        format!("{a}.{b}.{c}.{d}."),
        format!("{whole}"),
        format!("0x{whole:x}"),
        format!("0X{whole:X}"),
        format!("0{whole:o}"),
        format!("{a}.{last_three}"),
        format!("{a}.{b}.{last_two}"),
        format!("0x{a:x}.0{b:o}.{last_two}"),
        format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
        format!(
            "%3{}{}.{b}.{c}.{d}",
            a.to_string().as_bytes()[0] - b'0',
            &a.to_string()[1..]
        ),
        v6([0, 0, 0, 0, 0, 0xffff]),
        v6([0, 0, 0, 0, 0xffff, 0]),
        v6([0x64, 0xff9b, 0, 0, 0, 0]),
        v6([0x64, 0xff9b, 1, 0, 0, 0]),
        format!("[2002:{:x}:{:x}::1]", whole >> 16, last_two),
    ]
}

proptest! {
    /// No spelling of a rejected address is allowed.
    #[test]
    fn every_spelling_is_the_address(
        address in prop_oneof![
            any::<u32>(),
            Just(0x7f00_0001),
            Just(0xa9fe_a9fe),
            0x0a00_0000_u32..0x0aff_ffff,
            0xc0a8_0000_u32..0xc0a8_ffff,
        ],
        allow_private in any::<bool>(),
    ) {
        let address = Ipv4Addr::from(address);
        let plain = may_be_called(IpAddr::V4(address), allow_private);
        for host in spellings(address) {
            prop_assert!(plain || !allows(&host, allow_private), "{} as {}", address, host);
        }
    }

    #[test]
    fn any_text_is_a_url_that_may_be_called_or_refused(text in "(https?|ftp)?(://)?\\PC{0,40}") {
        for allow_private in [true, false] {
            if let Ok(url) = policy(allow_private).check("it", &text) {
                // The returned URL must pass the same check.
                prop_assert!(policy(allow_private).check("it", url.as_str()).is_ok(), "{}", url);
            }
        }
        let _ = text.parse::<HostPattern>();
    }
}
