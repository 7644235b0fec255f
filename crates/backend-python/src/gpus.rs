//! The GPUs of Python models: each process gets its own, the least used ones first.

use std::sync::Arc;

use parking_lot::Mutex;
use volley_types::{ErrorCode, PredictError};

/// The variable that has the GPUs of a program.
pub(crate) const VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// The GPUs that a worker gives to its models.
#[derive(Clone, Debug)]
pub(crate) struct Gpus(Arc<Mutex<Vec<Gpu>>>);

#[derive(Debug)]
struct Gpu {
    /// An index or a UUID.
    id: String,
    /// Processes that have it.
    users: usize,
}

/// GPUs of one process. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct GpuLease {
    all: Gpus,
    held: Vec<usize>,
}

impl Gpus {
    /// The GPUs `ids`. `None`: those that this process may use.
    pub(crate) fn new(ids: Option<Vec<String>>) -> Self {
        let ids = ids.unwrap_or_else(|| {
            let allowed = std::env::var(VARIABLE).ok();
            usable(allowed.as_deref(), count_devices())
        });
        let gpus = ids.into_iter().map(|id| Gpu { id, users: 0 });
        Self(Arc::new(Mutex::new(gpus.collect())))
    }

    /// So many GPUs for a process; without a number one, where there is any.
    ///
    /// # Errors
    /// `InvalidInput` when the worker has fewer.
    pub(crate) fn lease(&self, wanted: Option<u64>) -> Result<GpuLease, PredictError> {
        let mut gpus = self.0.lock();
        let wanted = wanted.unwrap_or(1.min(gpus.len() as u64));
        let count = usize::try_from(wanted).unwrap_or(usize::MAX);
        if gpus.len() < count {
            let message = format!(
                "parameter 'gpus' is {wanted} and this worker has {} for Python models; deploy the \
                 model to workers with a label for GPUs, or see 'python.gpus'",
                gpus.len()
            );
            return Err(PredictError::new(ErrorCode::InvalidInput, message));
        }
        let mut order: Vec<usize> = (0..gpus.len()).collect();
        order.sort_by_key(|index| gpus.get(*index).map_or(usize::MAX, |gpu| gpu.users));
        order.truncate(count);
        order.sort_unstable();
        for index in &order {
            if let Some(gpu) = gpus.get_mut(*index) {
                gpu.users += 1;
            }
        }
        Ok(GpuLease {
            all: self.clone(),
            held: order,
        })
    }
}

impl GpuLease {
    /// The value of [`VARIABLE`]; empty without GPUs.
    pub(crate) fn visible(&self) -> String {
        let gpus = self.all.0.lock();
        let held = self.held.iter().filter_map(|index| gpus.get(*index));
        held.map(|gpu| gpu.id.as_str())
            .collect::<Vec<_>>()
            .join(",")
    }
}

impl Drop for GpuLease {
    fn drop(&mut self) {
        let mut gpus = self.all.0.lock();
        for index in &self.held {
            if let Some(gpu) = gpus.get_mut(*index) {
                gpu.users -= 1;
            }
        }
    }
}

/// The GPUs of a process with `allowed` as [`VARIABLE`] on a machine with `devices` of them.
fn usable(allowed: Option<&str>, devices: usize) -> Vec<String> {
    match allowed {
        Some(allowed) => {
            let ids = allowed.split(',').map(str::trim);
            // CUDA ignores what follows an invalid name.
            let ids = ids.take_while(|id| !id.is_empty() && *id != "-1");
            ids.map(str::to_owned).collect()
        }
        None => (0..devices).map(|index| index.to_string()).collect(),
    }
}

/// NVIDIA's devices of this machine or container.
fn count_devices() -> usize {
    let entries = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    names
        .filter(|name| name.strip_prefix("nvidia").is_some_and(is_number))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_get_the_least_used_gpus() {
        let gpus = Gpus::new(Some(vec!["0".to_owned(), "GPU-b".to_owned()]));
        let first = gpus.lease(None).unwrap();
        let second = gpus.lease(Some(1)).unwrap();
        assert_eq!(
            (first.visible(), second.visible()),
            ("0".into(), "GPU-b".into())
        );
        drop(first);
        assert_eq!(gpus.lease(None).unwrap().visible(), "0");
        assert_eq!(gpus.lease(Some(2)).unwrap().visible(), "0,GPU-b");
        assert_eq!(gpus.lease(Some(0)).unwrap().visible(), "");
        let error = gpus.lease(Some(3)).unwrap_err();
        assert!(error.message.contains("this worker has 2"), "{error}");
    }

    #[test]
    fn a_model_without_gpus_sees_none() {
        let none = Gpus::new(Some(Vec::new()));
        assert_eq!(none.lease(None).unwrap().visible(), "");
        assert!(none.lease(Some(1)).is_err());
    }

    #[test]
    fn the_gpus_of_the_worker_are_those_of_its_models() {
        assert_eq!(usable(None, 2), ["0", "1"]);
        assert_eq!(usable(Some("2, GPU-a"), 8), ["2", "GPU-a"]);
        assert_eq!(usable(Some("1,-1,2"), 8), ["1"]);
        assert!(usable(Some(""), 8).is_empty());
    }
}
