//! Percentiles and medians of measurements.

/// The value below which `share` (0 to 1) of `values` lie, by the nearest-rank method; 0 for
/// no values. Sorts in place.
pub(crate) fn percentile(values: &mut [u64], share: f64) -> u64 {
    values.sort_unstable();
    let rank = (share * values.len() as f64).ceil() as usize;
    values
        .get(rank.clamp(1, values.len().max(1)) - 1)
        .copied()
        .unwrap_or_default()
}

/// The median of `values`: the mean of the two middle values for an even count, NaN for none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match sorted.as_slice() {
        [] => f64::NAN,
        sorted if sorted.len() % 2 == 1 => sorted[sorted.len() / 2],
        sorted => f64::midpoint(sorted[sorted.len() / 2 - 1], sorted[sorted.len() / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_and_middles() {
        let mut values: Vec<u64> = (1..=100).rev().collect();
        assert_eq!(percentile(&mut values, 0.5), 50);
        assert_eq!(percentile(&mut values, 0.99), 99);
        assert_eq!(percentile(&mut [], 0.5), 0);
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median(&[1.0, 2.0]) - 1.5).abs() < f64::EPSILON);
    }
}
