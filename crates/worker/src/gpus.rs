//! GPU metrics from NVIDIA's driver. The worker opens the driver's library at start; a machine
//! without the library reports no GPUs.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use volley_types::GpuReport;

use crate::Worker;

/// Name of the driver's library.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// Sampling interval. One sample takes the driver a few milliseconds.
const INTERVAL: Duration = Duration::from_secs(2);

/// Sample of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct GpuSample {
    name: Option<String>,
    used_bytes: u64,
    total_bytes: u64,
    /// `None` for partitions of a GPU.
    utilization_percent: Option<u32>,
}

impl GpuSample {
    fn report(self, index: u32) -> GpuReport {
        GpuReport {
            index,
            name: self.name.unwrap_or_else(|| "GPU".to_owned()),
            used_bytes: self.used_bytes.min(self.total_bytes),
            total_bytes: self.total_bytes,
            utilization_percent: self.utilization_percent.unwrap_or(0).min(100),
        }
    }
}

impl Worker {
    /// Updates the GPU metrics periodically; returns immediately without GPUs.
    pub(crate) async fn watch_gpus(self) {
        let opened = tokio::task::spawn_blocking(|| open(LIBRARY.as_ref())).await;
        let driver = match opened {
            Ok(Ok(driver)) => Arc::new(driver),
            Ok(Err(error)) => {
                tracing::info!(reason = %error, "GPU metrics are not available");
                return;
            }
            Err(error) => {
                tracing::warn!(%error, "GPU metrics are not available");
                return;
            }
        };
        let mut beat = tokio::time::interval(INTERVAL);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            beat.tick().await;
            let driver = driver.clone();
            let Ok(gpus) = tokio::task::spawn_blocking(move || read(&driver)).await else {
                return;
            };
            self.0.metrics.set_gpus(&gpus);
            *self.0.gpus.lock() = gpus;
        }
    }
}

fn open(library: &OsStr) -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(library).init()
}

/// All GPUs that answer.
fn read(driver: &Nvml) -> Vec<GpuReport> {
    let count = driver.device_count().unwrap_or(0);
    let told = (0..count).filter_map(|index| match ask(driver, index) {
        Ok(told) => Some(told.report(index)),
        Err(error) => {
            tracing::debug!(gpu = index, %error, "GPU query failed");
            None
        }
    });
    told.collect()
}

fn ask(driver: &Nvml, index: u32) -> Result<GpuSample, NvmlError> {
    let device = driver.device_by_index(index)?;
    let memory = device.memory_info()?;
    Ok(GpuSample {
        name: device.name().ok(),
        used_bytes: memory.used,
        total_bytes: memory.total,
        utilization_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_driver_says_becomes_a_report_that_makes_sense() {
        let told = GpuSample {
            name: Some("NVIDIA H200".to_owned()),
            used_bytes: 3 << 30,
            total_bytes: 139 << 30,
            utilization_percent: Some(87),
        };
        let report = told.clone().report(2);
        assert_eq!((report.index, report.name.as_str()), (2, "NVIDIA H200"));
        assert_eq!(
            (report.used_bytes, report.total_bytes),
            (3 << 30, 139 << 30)
        );
        assert_eq!(report.utilization_percent, 87);
        // A part of a GPU, and numbers that contradict each other.
        let odd = GpuSample {
            used_bytes: 5,
            total_bytes: 4,
            utilization_percent: None,
            name: None,
        };
        let report = odd.report(0);
        assert_eq!((report.used_bytes, report.utilization_percent), (4, 0));
        assert_eq!(report.name, "GPU");
        let more = GpuSample {
            utilization_percent: Some(1_000),
            ..told
        };
        assert_eq!(more.report(0).utilization_percent, 100);
    }

    /// Where there is a driver, it tells of GPUs that make sense.
    #[test]
    fn what_is_there_has_memory() {
        let Ok(driver) = open(OsStr::new(LIBRARY)) else {
            return;
        };
        for gpu in read(&driver) {
            assert!(
                0 < gpu.total_bytes && gpu.used_bytes <= gpu.total_bytes,
                "{gpu:?}"
            );
            assert!(gpu.utilization_percent <= 100, "{gpu:?}");
        }
    }

    #[test]
    fn a_machine_without_the_library_has_an_error_that_names_it() {
        let error = open(OsStr::new("libnvidia-ml-of-nobody.so.1"));
        let error = error.expect_err("there is no such library").to_string();
        assert!(!error.is_empty(), "{error}");
    }
}
