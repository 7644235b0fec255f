//! Chooses the number of sessions of a text encoder, and of threads of each. Pure.
//!
//! A small model gains little from a second thread for each operator, and waking it costs time. Two
//! concurrent runs with one thread each do not slow each other down. Such a model therefore gets
//! one session for each core, within a limit on the memory of weights, and one wide session with
//! more threads for runs that are alone.

use volley_onnx_runtime::session;
use volley_onnx_runtime::session::ExecutionDevice;
use volley_onnx_runtime::{Device, OnnxConfig};

/// Maximum bytes of the weights of all sessions, if their number is chosen automatically.
const SIDE_BYTES: u64 = 512 << 20;

/// The sessions of a text encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SessionPool {
    /// Number of concurrent sessions.
    pub(super) count: usize,
    /// Threads of each session.
    pub(super) threads: usize,
    /// Threads of the wide session for runs that are alone.
    pub(super) wide: Option<usize>,
}

impl SessionPool {
    /// One session of one thread.
    #[cfg(test)]
    pub(super) const ONE: Self = Self {
        count: 1,
        threads: 1,
        wide: None,
    };

    /// The sessions of a model with `bytes` bytes of weights on `cores` cores: the configured
    /// numbers, or the best ones if nothing is configured.
    pub(super) fn of(config: &OnnxConfig, bytes: u64, cores: usize) -> Self {
        let most = session::threads_of(bytes, cores);
        let chosen = config.instances == 0 && config.threads == 0 && config.device != Device::Cuda;
        if !chosen {
            let count = config.instances.max(1);
            let share = most.min(cores.div_ceil(count));
            let threads = Some(config.threads).filter(|threads| *threads != 0);
            return Self {
                count,
                threads: threads.unwrap_or(share),
                wide: None,
            };
        }
        let side_by_side = |count: usize| {
            let threads = (cores / count).clamp(1, most);
            Self {
                count,
                threads,
                wide: Some(most).filter(|most| threads < *most),
            }
        };
        let fits = |lanes: &Self| lanes.bytes(bytes) <= SIDE_BYTES;
        let counts = (2..=cores.min(OnnxConfig::MAX_INSTANCES)).rev();
        counts.map(side_by_side).find(fits).unwrap_or(Self {
            count: 1,
            threads: most,
            wide: None,
        })
    }

    /// Adapts the pool to the actual device: automatic numbers only apply to CPUs.
    pub(super) fn on(self, place: ExecutionDevice, config: &OnnxConfig) -> Self {
        match place {
            ExecutionDevice::Host => self,
            ExecutionDevice::Cuda(_) => Self {
                count: config.instances.max(1),
                wide: None,
                ..self
            },
        }
    }

    /// Bytes of the weights of all sessions; each session has `bytes` bytes.
    pub(super) fn bytes(&self, bytes: u64) -> u64 {
        let sessions = self.count + usize::from(self.wide.is_some());
        bytes.saturating_mul(sessions as u64)
    }

    /// A description for people.
    pub(super) fn told(&self) -> String {
        let threads = |count: usize| match count {
            1 => "1 thread".to_owned(),
            count => format!("{count} threads"),
        };
        let sessions = format!("{} of {}", self.count, threads(self.threads));
        match self.wide {
            Some(wide) => format!("{sessions}, and one of {} for what is alone", threads(wide)),
            None => sessions,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn lanes(bytes: u64, cores: usize) -> (usize, usize, Option<usize>) {
        let lanes = SessionPool::of(&OnnxConfig::default(), bytes, cores);
        (lanes.count, lanes.threads, lanes.wide)
    }

    #[test]
    fn small_models_run_side_by_side_and_large_ones_on_all_cores() {
        assert_eq!(lanes(22 * MIB, 2), (2, 1, None));
        assert_eq!(lanes(22 * MIB, 16), (16, 1, None));
        assert_eq!(lanes(90 * MIB, 2), (2, 1, Some(2)));
        assert_eq!(lanes(90 * MIB, 4), (4, 1, Some(3)));
        assert_eq!(lanes(90 * MIB, 16), (5, 3, None));
        assert_eq!(lanes(130 * MIB, 16), (3, 5, None));
        assert_eq!(lanes(440 * MIB, 2), (1, 2, None));
        assert_eq!(lanes(440 * MIB, 16), (1, 14, None));
        assert_eq!(lanes(90 * MIB, 1), (1, 1, None));
        assert_eq!(lanes(0, 4), (4, 1, None));
        assert_eq!(lanes(u64::MAX, 4), (1, 4, None));
    }

    #[test]
    fn what_is_set_is_kept() {
        let set = |instances, threads, device| {
            let config = OnnxConfig {
                instances,
                threads,
                device,
                ..OnnxConfig::default()
            };
            let lanes = SessionPool::of(&config, 90 * MIB, 4);
            (lanes.count, lanes.threads, lanes.wide)
        };
        assert_eq!(set(1, 0, Device::Cpu), (1, 3, None));
        assert_eq!(set(2, 0, Device::Cpu), (2, 2, None));
        assert_eq!(set(0, 2, Device::Auto), (1, 2, None));
        assert_eq!(set(3, 1, Device::Auto), (3, 1, None));
        assert_eq!(set(0, 0, Device::Cuda), (1, 3, None));
    }

    #[test]
    fn the_weights_of_all_sessions_stay_within_the_limit() {
        for mib in 0..600 {
            for cores in 1..=64 {
                let lanes = SessionPool::of(&OnnxConfig::default(), mib * MIB, cores);
                let sessions = lanes.bytes(mib * MIB);
                assert!(lanes.count == 1 || sessions <= SIDE_BYTES, "{mib} {cores}");
                assert!(lanes.count * lanes.threads <= cores, "{mib} {cores}");
            }
        }
    }
}
