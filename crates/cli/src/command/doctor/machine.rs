//! Checks of the machine: open files, disk, ports.

use std::io::{ErrorKind, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::{Finding, Verdict};

/// The default limits of a coordinator allow 20,000 connections, and each needs a file descriptor.
const OPEN_FILES: u64 = 32_768;
const MIN_FREE_BYTES: u64 = 1 << 30;
const FEW_FREE_BYTES: u64 = 10 << 30;
const SYNCS: usize = 20;
/// A write waits for one sync on each of two disks. A slow disk delays writes; a very slow one
/// causes leader elections.
const SLOW_SYNC: Duration = Duration::from_millis(25);
const BAD_SYNC: Duration = Duration::from_millis(250);

/// Checks the limit of open files of this user's processes.
pub(super) fn limits() -> Vec<Finding> {
    let Ok(text) = std::fs::read_to_string("/proc/self/limits") else {
        return Vec::new();
    };
    open_files(&text).into_iter().collect()
}

fn open_files(text: &str) -> Option<Finding> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    let soft = line.split_whitespace().next()?;
    let what = "open files";
    let limit = match soft.parse::<u64>() {
        Ok(limit) => limit,
        Err(_) => return Some(Finding::good(what, soft)),
    };
    Some(if limit < OPEN_FILES {
        Finding::new(
            Verdict::Notice,
            what,
            format!("{limit} per process; each connection uses one"),
            "raise it: `ulimit -n 1048576`, or LimitNOFILE= in the systemd unit",
        )
    } else {
        Finding::good(what, limit.to_string())
    })
}

/// Checks that the node can listen on `address`.
pub(super) fn port(key: &str, address: &str) -> Finding {
    let what = "port";
    match TcpListener::bind(address) {
        Ok(_) => Finding::good(what, format!("{key}: {address} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Finding::new(
            Verdict::Notice,
            what,
            format!("{key}: {address} is in use"),
            "expected while the node runs; otherwise stop the process that uses it, or choose \
             another port",
        ),
        Err(error) => Finding::new(
            Verdict::Bad,
            what,
            format!("{key}: {address}: {error}"),
            "use an address of this machine, and a port that this user may listen on",
        ),
    }
}

/// Checks the permissions of a key file: other users must not read it, and only its owner may write
/// it. `None` if they are safe, or if the file does not exist, which the check of the configuration
/// reports.
pub(super) fn open(file: &Path) -> Option<Finding> {
    let mode = std::fs::metadata(file).ok()?.permissions().mode() & 0o777;
    (mode & 0o037 != 0).then(|| {
        Finding::new(
            Verdict::Notice,
            "key",
            format!("{} is open to other users (mode {mode:o})", file.display()),
            "`chmod 600` it, and make the node's user its owner; every user that could read it \
             may have the key",
        )
    })
}

/// Checks that a directory is writable, its free space, and the latency of a sync.
pub(super) fn disk(folder: &Path) -> Vec<Finding> {
    // A node creates its directory. Until then, the nearest existing ancestor is checked.
    let there = folder.ancestors().find(|folder| folder.is_dir());
    let place = there.unwrap_or(Path::new("."));
    let mut findings = vec![match syncs(place) {
        Ok(median) => latency(place, median),
        Err(error) => Finding::new(
            Verdict::Bad,
            "disk",
            format!("{} cannot be written: {error}", place.display()),
            "give this user write access, or free disk space",
        ),
    }];
    if let Ok(room) = rustix::fs::statvfs(place) {
        findings.push(free(place, room.f_bavail.saturating_mul(room.f_frsize)));
    }
    findings
}

fn latency(place: &Path, median: Duration) -> Finding {
    let detail = format!("{}: a sync takes {median:.1?}", place.display());
    let advice = "use a fast local disk: each write to the registry waits for a sync";
    match median {
        median if median < SLOW_SYNC => Finding::good("disk", detail),
        median if median < BAD_SYNC => Finding::new(Verdict::Notice, "disk", detail, advice),
        _ => Finding::new(Verdict::Bad, "disk", detail, advice),
    }
}

fn free(place: &Path, bytes: u64) -> Finding {
    let detail = format!("{}: {} MiB free", place.display(), bytes >> 20);
    let advice = "free disk space, or move the directory; a full disk stops the node's writes";
    match bytes {
        bytes if bytes < MIN_FREE_BYTES => Finding::new(Verdict::Bad, "room", detail, advice),
        bytes if bytes < FEW_FREE_BYTES => Finding::new(Verdict::Notice, "room", detail, advice),
        _ => Finding::good("room", detail),
    }
}

/// The median duration of a small synced write.
fn syncs(folder: &Path) -> std::io::Result<Duration> {
    let path = folder.join(format!(".volley-doctor-{}", std::process::id()));
    let measured = (|| {
        let mut file = std::fs::File::create(&path)?;
        let mut times = Vec::with_capacity(SYNCS);
        for _ in 0..SYNCS {
            let began = Instant::now();
            file.write_all(&[0; 4_096])?;
            file.sync_data()?;
            times.push(began.elapsed());
        }
        times.sort_unstable();
        Ok(times[SYNCS / 2])
    })();
    // The file may not exist.
    let _ = std::fs::remove_file(&path);
    measured
}

#[cfg(test)]
mod tests;
