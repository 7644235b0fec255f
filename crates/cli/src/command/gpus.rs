//! A table cell with a worker's GPUs.

use volley_client::GpuInfo;

const GIB: f64 = (1_u64 << 30) as f64;

/// Used memory and utilization of each GPU; empty without GPUs.
pub(crate) fn gpus(gpus: &[GpuInfo]) -> String {
    let each = gpus.iter().map(|gpu| {
        format!(
            "{}: {:.1}/{:.1} GiB, {} %",
            gpu.index,
            gpu.used_bytes as f64 / GIB,
            gpu.total_bytes as f64 / GIB,
            gpu.utilization_percent,
        )
    });
    each.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests;
