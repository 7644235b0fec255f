//! Checks of a node's configuration file, and of the certificates, keys and ports that it names.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::Context;

use super::{Finding, Verdict, expiry, machine};
use crate::config;

/// The configuration file of a node, as far as `volley doctor` needs it.
pub(super) struct NodeFile {
    table: toml::Table,
    pub(super) is_coordinator: bool,
}

impl NodeFile {
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("reading the configuration {}", path.display()))?;
        let table: toml::Table = toml::from_str(&text)
            .with_context(|| format!("in the configuration {}", path.display()))?;
        let listen = table.get("listen").and_then(toml::Value::as_table);
        let is_coordinator = listen.is_some_and(|listen| listen.contains_key("public"));
        Ok(Self {
            table,
            is_coordinator,
        })
    }

    pub(super) fn value(&self, keys: &[&str]) -> Option<&toml::Value> {
        let (last, sections) = keys.split_last()?;
        let mut table = &self.table;
        for section in sections {
            table = table.get(*section)?.as_table()?;
        }
        table.get(*last)
    }

    pub(super) fn text(&self, keys: &[&str]) -> Option<&str> {
        self.value(keys)?.as_str()
    }

    /// The strings of a list.
    pub(super) fn texts(&self, keys: &[&str]) -> impl Iterator<Item = &str> {
        let list = self.value(keys).and_then(toml::Value::as_array);
        list.into_iter().flatten().filter_map(toml::Value::as_str)
    }

    /// The URL of the node from this machine: the public listener of a coordinator, or the health
    /// listener of a worker. An unspecified address is replaced by loopback.
    pub(super) fn url(&self) -> Option<String> {
        let listener = if self.is_coordinator {
            "public"
        } else {
            "http"
        };
        let address = self.text(&["listen", listener])?;
        let address = match address.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_unspecified() => {
                let host = if address.is_ipv4() {
                    "127.0.0.1"
                } else {
                    "[::1]"
                };
                format!("{host}:{}", address.port())
            }
            _ => address.to_owned(),
        };
        let tls = self.value(&["security", "tls", "certificate"]).is_some();
        let scheme = if tls { "https" } else { "http" };
        Some(format!("{scheme}://{address}"))
    }

    pub(super) fn path(&self, keys: &[&str]) -> Option<PathBuf> {
        self.text(keys).map(PathBuf::from)
    }

    /// Checks the file like the node itself does, and its certificates, keys and ports.
    pub(super) fn check(&self, path: &Path) -> Vec<Finding> {
        let read = if self.is_coordinator {
            config::coordinator::read(path).map(drop)
        } else {
            config::worker::read(path).map(drop)
        };
        let kind = if self.is_coordinator {
            "coordinator"
        } else {
            "worker"
        };
        let mut findings = vec![match read {
            Ok(()) => Finding::good("configuration", format!("{} is a {kind}'s", path.display())),
            Err(error) => Finding::new(
                Verdict::Bad,
                "configuration",
                format!("{error:#}"),
                "correct the file; docs/reference/configuration.md explains every key",
            ),
        }];
        let certificates = [
            ["security", "tls", "certificate"],
            ["security", "nodes", "certificate"],
            ["security", "nodes", "authority"],
        ];
        for keys in certificates {
            if let Some(file) = self.path(&keys) {
                findings.push(expiry(&file, SystemTime::now()));
            }
        }
        findings.extend(self.secrets().iter().filter_map(|file| machine::open(file)));
        for (key, address) in self.addresses() {
            findings.push(machine::port(&key, address));
        }
        findings
    }

    /// The files that must not be readable by other users.
    fn secrets(&self) -> Vec<PathBuf> {
        let single: [&[&str]; 4] = [
            &["security", "tls", "key"],
            &["security", "nodes", "key"],
            &["security", "bootstrap_key_file"],
            &["security", "metrics_key_file"],
        ];
        let mut files: Vec<_> = single.iter().filter_map(|keys| self.path(keys)).collect();
        let masters = self.texts(&["security", "master_key_files"]);
        files.extend(masters.map(PathBuf::from));
        files
    }

    /// The addresses of the node's listeners, by key.
    fn addresses(&self) -> Vec<(String, &str)> {
        let single = [
            ["listen", "public"],
            ["listen", "internal"],
            ["listen", "flight"],
            ["listen", "http"],
            ["listen", "admin"],
            ["grpc", "triton"],
            ["grpc", "mlserver"],
        ];
        let single = single.iter().filter_map(|keys| {
            let address = self.text(keys)?;
            Some((keys.join("."), address))
        });
        let additional = self.texts(&["listen", "additional"]);
        single
            .chain(additional.map(|address| ("listen.additional".to_owned(), address)))
            .collect()
    }
}
