//! Metrics of a worker's GPUs.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use volley_types::GpuReport;

use super::Metrics;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MemoryLabel {
    device: u32,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeviceLabel {
    device: u32,
}

/// The last reported memory and utilization of each GPU.
#[derive(Default)]
pub(super) struct Gpus {
    memory: Family<MemoryLabel, Gauge>,
    utilization: Family<DeviceLabel, Gauge<f64, AtomicU64>>,
}

impl Gpus {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "gpu_memory_bytes",
            "Memory of each GPU, used (by any process) and free",
            self.memory.clone(),
        );
        registry.register(
            "gpu_utilization_ratio",
            "Share of the last sampling period in which each GPU was busy, 0 to 1",
            self.utilization.clone(),
        );
    }
}

impl Metrics {
    /// Sets memory and utilization of this worker's GPUs.
    pub fn set_gpus(&self, gpus: &[GpuReport]) {
        let families = &self.0.gpus;
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        for gpu in gpus {
            let device = gpu.index;
            let free = gpu.total_bytes.saturating_sub(gpu.used_bytes);
            for (state, bytes) in [("used", gpu.used_bytes), ("free", free)] {
                let gauge = families
                    .memory
                    .get_or_create(&MemoryLabel { device, state });
                gauge.set(number(bytes));
            }
            let gauge = families.utilization.get_or_create(&DeviceLabel { device });
            gauge.set(f64::from(gpu.utilization_percent) / 100.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gpu_tells_what_it_has_used_and_free() {
        let metrics = Metrics::new();
        assert!(!metrics.encode().contains("volley_gpu_memory_bytes{"));
        metrics.set_gpus(&[GpuReport {
            index: 1,
            name: "GPU".to_owned(),
            used_bytes: 3,
            total_bytes: 10,
            utilization_percent: 40,
        }]);
        let text = metrics.encode();
        for line in [
            "volley_gpu_memory_bytes{device=\"1\",state=\"used\"} 3",
            "volley_gpu_memory_bytes{device=\"1\",state=\"free\"} 7",
            "volley_gpu_utilization_ratio{device=\"1\"} 0.4",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
    }
}
