//! Hosts of a test network: a network namespace each, all on one bridge.

use std::net::Ipv4Addr;
use std::process::Command;

/// The bridge, and the prefix of all names.
const BRIDGE: &str = "vchaos";
/// Where the bridge itself, and with it this process, is.
pub const HERE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 254);

/// A host: a namespace with one address.
#[derive(Clone, Debug)]
pub struct Host {
    /// The namespace.
    pub namespace: String,
    /// Its address.
    pub address: Ipv4Addr,
}

/// The bridge with its hosts; all removed when dropped.
#[derive(Debug)]
pub struct Network {
    hosts: Vec<Host>,
}

impl Network {
    /// Makes `count` hosts, whose addresses end in 1, 2 and so on.
    ///
    /// # Errors
    /// When the kernel or the rights do not allow that.
    pub fn make(count: u8) -> Result<Self, String> {
        remove_all();
        ip(&["link", "add", BRIDGE, "type", "bridge"])?;
        ip(&["addr", "add", &format!("{HERE}/24"), "dev", BRIDGE])?;
        ip(&["link", "set", BRIDGE, "up"])?;
        let mut network = Self { hosts: Vec::new() };
        for index in 1..=count {
            network.hosts.push(host(index)?);
        }
        Ok(network)
    }

    /// The hosts.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        remove_all();
    }
}

impl Host {
    /// Drops what this host sends to `other`; what the other sends still arrives.
    ///
    /// # Errors
    /// When that cannot be set.
    pub fn cut_towards(&self, other: &Self) -> Result<(), String> {
        let to = other.address.to_string();
        self.inside(&["route", "replace", "blackhole", &to])
    }

    /// Undoes [`Host::cut_towards`]. No error when nothing was cut.
    pub fn mend_towards(&self, other: &Self) {
        let to = other.address.to_string();
        // An error says that there was no such route.
        let _ = self.inside(&["route", "del", "blackhole", &to]);
    }

    /// Loses one of ten packets that arrive, at random, until [`Host::lose_nothing`].
    ///
    /// # Errors
    /// When that cannot be set.
    pub fn lose(&self) -> Result<(), String> {
        self.nft("add table inet chaos")?;
        self.nft("add chain inet chaos in { type filter hook input priority 0 ; }")?;
        self.nft("add rule inet chaos in numgen random mod 100 < 10 drop")
    }

    /// Undoes [`Host::lose`].
    pub fn lose_nothing(&self) {
        // An error says that nothing was lost.
        let _ = self.nft("delete table inet chaos");
    }

    fn nft(&self, rule: &str) -> Result<(), String> {
        run("ip", &["netns", "exec", &self.namespace, "nft", rule])
    }

    /// Takes the host's link down or up.
    ///
    /// # Errors
    /// When that cannot be set.
    pub fn link(&self, up: bool) -> Result<(), String> {
        self.inside(&["link", "set", "eth0", if up { "up" } else { "down" }])
    }

    fn inside(&self, arguments: &[&str]) -> Result<(), String> {
        ip(&[&["-n", self.namespace.as_str()], arguments].concat())
    }
}

fn host(index: u8) -> Result<Host, String> {
    let namespace = format!("{BRIDGE}{index}");
    let outside = format!("{BRIDGE}v{index}");
    let address = Ipv4Addr::new(10, 77, 0, index);
    ip(&["netns", "add", &namespace])?;
    ip(&[
        "link", "add", &outside, "type", "veth", "peer", "name", "eth0", "netns", &namespace,
    ])?;
    ip(&["link", "set", &outside, "master", BRIDGE, "up"])?;
    let host = Host { namespace, address };
    host.inside(&["addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
    host.inside(&["link", "set", "lo", "up"])?;
    host.link(true)?;
    Ok(host)
}

fn remove_all() {
    let listed = Command::new("ip").args(["netns", "list"]).output();
    let listed = listed.map(|output| output.stdout).unwrap_or_default();
    for line in String::from_utf8_lossy(&listed).lines() {
        let name = line.split(' ').next().unwrap_or_default();
        if name.starts_with(BRIDGE) {
            // What is left over from a run that was killed.
            let _ = ip(&["netns", "del", name]);
        }
    }
    let _ = ip(&["link", "del", BRIDGE]);
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    run("ip", arguments)
}

/// Runs a program to its end.
///
/// # Errors
/// What it said, when it failed.
pub(super) fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "{program} {}: {}",
        arguments.join(" "),
        said.trim()
    ))
}
