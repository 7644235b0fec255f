//! The end of a process that takes too much memory, before its limit is reached.
//!
//! The kernel refuses allocations beyond the limit of the process. A library that allocates in one
//! large piece then fails, and its caller gets an error. One that allocates in many small pieces
//! fails anywhere, also where it cannot report it. A thread therefore ends the process just below
//! the limit, by a signal that the worker recognizes. The time between two measurements is shorter
//! than the process could need to reach the limit.

use std::io;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

/// The signal that ends such a process. Its default action ends a process, and nothing else sends
/// it.
pub(crate) const END: Signal = Signal::USR1;

/// Bytes below the limit at which a process ends.
const RESERVE_BYTES: u64 = 128 << 20;
/// The fastest growth of a process in bytes per second: more than a machine's memory can be written.
const FASTEST_GROWTH: u64 = 16 << 30;
const SHORTEST_WAIT: Duration = Duration::from_millis(2);
const LONGEST_WAIT: Duration = Duration::from_millis(250);

/// Ends this process when it has reserved nearly `limit` bytes of private memory.
///
/// # Errors
/// When the thread cannot be started, or this system does not report the memory of a process.
pub(crate) fn start(limit: u64) -> io::Result<()> {
    reserved()?;
    let end_at = limit.saturating_sub(RESERVE_BYTES).max(limit / 2);
    let thread = std::thread::Builder::new().name("memory-guard".to_owned());
    thread.spawn(move || {
        loop {
            // The file was readable at the start.
            let reserved = reserved().unwrap_or(0);
            if end_at <= reserved {
                end(reserved, limit);
            }
            std::thread::sleep(wait(end_at - reserved.min(end_at)));
        }
    })?;
    Ok(())
}

fn end(reserved: u64, limit: u64) {
    tracing::error!(reserved, limit, "process ended: it took too much memory");
    if let Err(error) = kill_process(getpid(), END) {
        tracing::error!(%error, "process could not end itself");
    }
}

/// Time in which a process with `left` bytes below the limit cannot reach it.
fn wait(left: u64) -> Duration {
    let micros = left / (FASTEST_GROWTH / 1_000_000);
    Duration::from_micros(micros).clamp(SHORTEST_WAIT, LONGEST_WAIT)
}

/// Bytes of private memory that this process has reserved, which `RLIMIT_DATA` limits.
///
/// # Errors
/// When this system does not report it.
pub(crate) fn reserved() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let bytes = data_bytes(&status);
    bytes.ok_or_else(|| io::Error::other("the memory of this process is not known"))
}

/// The line `VmData` of `/proc/self/status` (proc_pid_status(5)) in bytes.
fn data_bytes(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmData:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_measured_before_it_can_reach_its_limit() {
        assert_eq!(wait(0), SHORTEST_WAIT);
        assert_eq!(wait(FASTEST_GROWTH), LONGEST_WAIT);
        let left = 512 << 20;
        let grown = wait(left).as_secs_f64() * 16e9;
        assert!(grown < f64::from(512 << 20), "{grown}");
    }

    #[test]
    fn the_memory_of_this_process_is_known() {
        let status = "VmPeak:\t   90 kB\nVmData:\t   12 kB\nVmStk:\t   132 kB\n";
        assert_eq!(data_bytes(status), Some(12 << 10));
        assert_eq!(data_bytes("VmPeak:\t90 kB"), None);
        let before = reserved().unwrap();
        let block = vec![1_u8; 64 << 20];
        assert!(before + (60 << 20) < reserved().unwrap(), "{}", block.len());
    }
}
