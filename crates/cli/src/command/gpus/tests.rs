use super::*;

#[test]
fn each_gpu_is_told_and_none_is_nothing() {
    let gpu = |index, used_bytes| GpuInfo {
        index,
        name: "GPU".to_owned(),
        used_bytes,
        total_bytes: 80 << 30,
        utilization_percent: 7,
    };
    let told = gpus(&[gpu(0, 3 << 29), gpu(1, 0)]);
    assert_eq!(told, "0: 1.5/80.0 GiB, 7 %; 1: 0.0/80.0 GiB, 7 %");
    assert_eq!(gpus(&[]), "");
}
