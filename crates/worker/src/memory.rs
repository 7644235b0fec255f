//! Memory limits of this process, as reported by the operating system.

use std::path::{Path, PathBuf};

/// Percentage for models. The rest is for requests, runs and the process itself.
const SHARE_PERCENT: u64 = 80;

/// Where control groups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Default memory budget in bytes: 80 % of the machine's memory, or of the limit of this process's
/// control group if that is lower. Unlimited if both are unknown.
pub(crate) fn default_budget() -> u64 {
    match system_bytes() {
        Some(bytes) => bytes / 100 * SHARE_PERCENT,
        None => u64::MAX,
    }
}

/// The machine's memory in bytes, or the limit of this process's control group if that is lower.
#[must_use]
pub fn system_bytes() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok();
    let machine = machine.and_then(|text| total_bytes(&text));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&groups).into_iter().filter_map(|file| {
        let text = std::fs::read_to_string(file).ok()?;
        text.trim().parse().ok()
    });
    limits.chain(machine).min()
}

/// The machine's memory in the text of `/proc/meminfo`.
fn total_bytes(meminfo: &str) -> Option<u64> {
    let mut lines = meminfo.lines();
    let line = lines.find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1_024)
}

/// Files with the limits of a process with this `/proc/self/cgroup`: its own group and all parent
/// groups, in both versions of control groups.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(kinds), Some(group)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (root, name) = if kinds.is_empty() {
            (PathBuf::from(CGROUPS), "memory.max")
        } else if kinds.split(',').any(|kind| kind == "memory") {
            (Path::new(CGROUPS).join("memory"), "memory.limit_in_bytes")
        } else {
            continue;
        };
        // In a container, the group's path is often not mounted: the root is the group.
        let group = Path::new(group.trim_start_matches('/'));
        files.extend(group.ancestors().map(|at| root.join(at).join(name)));
    }
    files
}

/// Formats a number of bytes.
pub(crate) fn size(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.iter().find(|(_, shift)| 1 << shift <= bytes);
    match unit {
        Some((name, shift)) => format!("{:.1} {name}", bytes as f64 / f64::from(1_u32 << shift)),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_and_every_group_around_the_process_are_asked() {
        let text = "MemTotal:       24576000 kB\nMemFree:          123 kB\n";
        assert_eq!(total_bytes(text), Some(24_576_000 * 1_024));
        assert_eq!(total_bytes("MemTotal: much"), None);
        let files = |groups: &str| -> Vec<String> {
            let files = limit_files(groups).into_iter();
            files.map(|file| file.display().to_string()).collect()
        };
        let expected = [
            "/sys/fs/cgroup/a/b/memory.max",
            "/sys/fs/cgroup/a/memory.max",
        ];
        assert_eq!(files("0::/a/b\n")[..2], expected);
        assert_eq!(files("0::/\n"), ["/sys/fs/cgroup/memory.max"]);
        let old = files("9:cpu:/x\n4:memory,other:/x\nnonsense");
        assert_eq!(old[0], "/sys/fs/cgroup/memory/x/memory.limit_in_bytes");
        assert_eq!(old.len(), 2);
        assert!(0 < default_budget());
    }

    #[test]
    fn sizes_are_told_in_the_unit_that_fits() {
        assert_eq!(size(5), "5 bytes");
        assert_eq!(size(1_536), "1.5 KiB");
        assert_eq!(size(3 << 30), "3.0 GiB");
        assert_eq!(size(u64::MAX), "17179869184.0 GiB");
    }
}
