//! The processes below a process: what they use, and their end.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};

/// How long killed processes may take to end. A process inside of a system call ends late.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A process as `/proc` describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessUsage {
    pub(crate) id: i32,
    pub(crate) parent: i32,
    /// Threads.
    pub(crate) tasks: u64,
    /// Resident memory in bytes; memory that processes share counts for each of them.
    pub(crate) resident: u64,
    /// Whether it has ended, and waits for its parent.
    pub(crate) is_zombie: bool,
}

impl ProcessUsage {
    /// The process of that id; `None` when it has ended.
    pub(crate) fn read(id: i32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        Self::parse(id, &stat)
    }

    /// Parses `/proc/ID/stat`. The name of a process may contain spaces and parentheses.
    fn parse(id: i32, stat: &str) -> Option<Self> {
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let pages: u64 = fields.get(21)?.parse().ok()?;
        Some(Self {
            id,
            parent: fields.get(1)?.parse().ok()?,
            tasks: fields.get(17)?.parse().ok()?,
            resident: pages.saturating_mul(rustix::param::page_size() as u64),
            is_zombie: matches!(*fields.first()?, "Z" | "X"),
        })
    }

    /// Memory in bytes, where a page that several processes share counts in parts.
    pub(crate) fn proportional(&self) -> u64 {
        let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.id));
        let rollup = rollup.unwrap_or_default();
        let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
        let kibibytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok());
        kibibytes.map_or(self.resident, |kibibytes: u64| {
            kibibytes.saturating_mul(1_024)
        })
    }

    fn signal(&self, signal: Signal) {
        if let Some(id) = Pid::from_raw(self.id) {
            // The usual error: it has ended.
            let _ = kill_process(id, signal);
        }
    }
}

/// All processes below `root`, ended ones included.
pub(crate) fn below(root: i32) -> Vec<ProcessUsage> {
    let mut children: HashMap<i32, Vec<ProcessUsage>> = HashMap::new();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in entries {
        let id = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        if let Some(process) = id.and_then(ProcessUsage::read) {
            children.entry(process.parent).or_default().push(process);
        }
    }
    let mut found = children.remove(&root).unwrap_or_default();
    let mut next = 0;
    while let Some(process) = found.get(next) {
        let more = children.remove(&process.id).unwrap_or_default();
        found.extend(more);
        next += 1;
    }
    found
}

/// Kills every process below this one, however fast they start others, and reaps them. False when
/// some go on after ten seconds.
pub(crate) fn kill_below(root: i32) -> bool {
    let since = Instant::now();
    while since.elapsed() < END_TIMEOUT {
        reap();
        let running: Vec<_> = below(root);
        let running: Vec<_> = running.iter().filter(|it| !it.is_zombie).collect();
        if running.is_empty() {
            return true;
        }
        // A stopped process starts no other while the rest is killed.
        for signal in [Signal::STOP, Signal::KILL] {
            running.iter().for_each(|process| process.signal(signal));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

/// Reaps every child that has ended.
fn reap() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 3 7 7 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 5 0 99 4096 10 0 0";
        let process = ProcessUsage::parse(7, stat).unwrap();
        let page = rustix::param::page_size() as u64;
        assert_eq!((process.parent, process.tasks), (3, 5));
        assert_eq!((process.resident, process.is_zombie), (10 * page, false));
        assert_eq!(ProcessUsage::parse(7, "7 (short) S 1"), None);
    }

    #[test]
    fn a_grandchild_is_below() {
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "sleep 1000 & wait"])
            .spawn()
            .unwrap();
        let me = i32::try_from(std::process::id()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let found = loop {
            let shell_id = i32::try_from(shell.id()).unwrap();
            let found: Vec<_> = below(shell_id);
            if !found.is_empty() || deadline < Instant::now() {
                break found;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        assert!(below(me).iter().any(|it| it.id == found[0].id));
        found[0].signal(Signal::KILL);
        shell.wait().unwrap();
    }
}
