//! Checks that the KV cache fits this machine.

use volley_types::PredictError;

const GIB: f64 = (1_u64 << 30) as f64;

/// Rejects a KV cache that is larger than the machine's memory. Its pages are allocated on first
/// use, so without this check the worker would load the model and be killed later.
///
/// # Errors
/// `InvalidInput` with both sizes.
pub(crate) fn check_fits(cache_bytes: usize) -> Result<(), PredictError> {
    match machine_bytes() {
        Some(machine) if machine < cache_bytes as u64 => Err(too_large(cache_bytes, machine)),
        _ => Ok(()),
    }
}

fn too_large(cache_bytes: usize, machine: u64) -> PredictError {
    PredictError::invalid(format!(
        "the KV cache would take up to {:.1} GiB, and this machine has {:.1} GiB; lower 'slots' \
         or 'max_context' of this worker",
        cache_bytes as f64 / GIB,
        machine as f64 / GIB,
    ))
}

/// The machine's memory in bytes; `None` if the system does not report it.
fn machine_bytes() -> Option<u64> {
    total(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read_and_nonsense_is_nothing() {
        let text = "MemTotal:       24576000 kB\nMemFree:          123 kB\n";
        assert_eq!(total(text), Some(24_576_000 * 1_024));
        assert_eq!(total("MemTotal: much"), None);
        assert_eq!(total(""), None);
    }

    #[test]
    fn what_cannot_fit_is_refused_with_both_sizes() {
        assert!(check_fits(1).is_ok());
        let error = too_large(3 << 30, 1 << 30);
        assert!(error.message.contains("3.0 GiB") && error.message.contains("1.0 GiB"));
    }
}
