//! Passes over a whole vocabulary, written so that the compiler vectorizes them: each step makes
//! one or more passes for each running generation.

/// Number of vector lanes.
const LANES: usize = 16;
/// Number of weights in a block, whose sum is computed before one of them is picked.
const BLOCK: usize = 256;
/// Below this argument, an exponential counts as 0.
const LOWEST: f32 = -87.0;

/// The largest finite number; negative infinity if there is none.
pub(super) fn highest(logits: &[f32]) -> f32 {
    let finite = |logit: f32| {
        if logit.abs() < f32::INFINITY {
            logit
        } else {
            f32::NEG_INFINITY
        }
    };
    fold(logits, |best, logit| larger(best, finite(logit)))
}

/// Index of the largest number, the first among equals; 0 if there is none.
pub(super) fn first_largest(logits: &[f32]) -> u32 {
    let best = fold(logits, larger);
    let first = logits.iter().position(|logit| *logit == best);
    first
        .and_then(|index| u32::try_from(index).ok())
        .unwrap_or(0)
}

/// The larger of both; `best` if `logit` is NaN.
fn larger(best: f32, logit: f32) -> f32 {
    if best < logit { logit } else { best }
}

/// Folds from negative infinity, in lanes.
fn fold(logits: &[f32], step: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, logit) in lanes.iter_mut().zip(chunk) {
            *lane = step(*lane, *logit);
        }
    }
    let best = lanes.into_iter().fold(f32::NEG_INFINITY, larger);
    rest.iter().fold(best, |best, logit| step(best, *logit))
}

/// Computes each logit's weight relative to the largest finite one, whose weight is 1; 0 for
/// non-finite logits. `scale` is the inverse of the temperature. Returns the sum of all weights.
pub(super) fn weigh(logits: &[f32], scale: f32, weights: &mut Vec<f32>) -> f32 {
    let highest = highest(logits);
    weights.clear();
    weights.extend(logits.iter().map(|logit| {
        let below = (logit - highest) * scale;
        let weight = exp(below);
        // Also false for NaN.
        if LOWEST < below && below <= 0.0 {
            weight
        } else {
            0.0
        }
    }));
    sum(weights)
}

fn sum(weights: &[f32]) -> f32 {
    weights.chunks(BLOCK).map(sum_of_block).sum()
}

fn sum_of_block(block: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (chunks, rest) = block.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, weight) in lanes.iter_mut().zip(chunk) {
            *lane += weight;
        }
    }
    lanes.iter().chain(rest).sum()
}

/// The number of weights that are at least `floor`, and their sum.
pub(super) fn above(weights: &[f32], floor: f32) -> (usize, f32) {
    let (mut count, mut total) = (0, 0.0);
    for block in weights.chunks(BLOCK) {
        let (mut counts, mut sums) = ([0_u32; LANES], [0.0_f32; LANES]);
        let (chunks, rest) = block.as_chunks::<LANES>();
        for chunk in chunks {
            let lanes = counts.iter_mut().zip(&mut sums);
            for ((count, sum), weight) in lanes.zip(chunk) {
                let counts = floor <= *weight;
                *count += u32::from(counts);
                *sum += if counts { *weight } else { 0.0 };
            }
        }
        for weight in rest.iter().filter(|weight| floor <= **weight) {
            counts[0] += 1;
            sums[0] += weight;
        }
        count += counts.iter().sum::<u32>() as usize;
        total += sums.iter().sum::<f32>();
    }
    (count, total)
}

/// The first index at which the cumulative weight reaches `left`; `None` if all weights are 0.
pub(super) fn pick(weights: &[f32], mut left: f32) -> Option<u32> {
    let mut last = None;
    for (block, start) in weights.chunks(BLOCK).zip((0..).step_by(BLOCK)) {
        let sum = sum_of_block(block);
        if sum <= 0.0 {
            continue;
        }
        let weighty = block.iter().rposition(|weight| 0.0 < *weight);
        last = weighty.map(|index| start + index);
        if sum < left {
            left -= sum;
            continue;
        }
        let found = block.iter().position(|weight| {
            left -= weight;
            0.0 < *weight && left <= 0.0
        });
        if let Some(index) = found {
            return u32::try_from(start + index).ok();
        }
    }
    // Rounding errors left a small rest.
    last.and_then(|index| u32::try_from(index).ok())
}

/// `e` to the power of `x` for `x` from [`LOWEST`] to 0, accurate to a few units in the last place;
/// undefined elsewhere. A power of two times a polynomial, as in Cephes.
fn exp(x: f32) -> f32 {
    /// Adding it rounds a small number to an integer, which is then in the low bits.
    const ROUNDS: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const COEFFICIENTS: [f32; 6] = [
        1.987_569_1e-4,
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        5e-1,
    ];
    let rounded = x * std::f32::consts::LOG2_E + ROUNDS;
    let power = rounded - ROUNDS;
    let rest = (x - power * LN_2_HIGH) - power * LN_2_LOW;
    let [first, others @ ..] = COEFFICIENTS;
    let mut sum = first;
    for coefficient in others {
        sum = sum * rest + coefficient;
    }
    let small = sum * rest * rest + rest + 1.0;
    let exponent = rounded.to_bits().wrapping_sub(ROUNDS.to_bits());
    small * f32::from_bits(exponent.wrapping_add(127) << 23)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_of_the_largest_is_found_wherever_it_is() {
        assert_eq!(first_largest(&[]), 0);
        assert_eq!(first_largest(&[f32::NAN; 40]), 0);
        for at in [0, 3, 15, 16, 17, 31, 40] {
            let mut logits = vec![-1.0; 41];
            (logits[at], logits[40]) = (2.0, 2.0);
            logits[(at + 1) % 40] = f32::NAN;
            assert_eq!(first_largest(&logits), at as u32);
        }
        assert_eq!(highest(&[f32::INFINITY, 1.0, f32::NAN]), 1.0);
    }

    #[test]
    fn what_weighs_nothing_is_never_picked() {
        let mut weights = vec![0.0; 1_000];
        (weights[300], weights[999]) = (0.5, 0.5);
        assert_eq!(pick(&weights, 0.0), Some(300));
        assert_eq!(pick(&weights, 0.5), Some(300));
        assert_eq!(pick(&weights, 0.6), Some(999));
        assert_eq!(pick(&weights, 1.5), Some(999));
        assert_eq!(pick(&[0.0; 300], 0.0), None);
    }

    proptest! {
        #[test]
        fn exponentials_are_right(x in LOWEST..0.0_f32) {
            let (right, ours) = (f64::from(x).exp(), f64::from(exp(x)));
            prop_assert!((ours - right).abs() <= 3e-7 * right, "{x}: {ours} {right}");
        }

        #[test]
        fn weights_are_what_they_are_in_double_precision(
            logits in proptest::collection::vec(-30.0_f32..30.0, 1..700),
            temperature in 0.2_f32..4.0,
            floor in 0.0_f32..1.0,
        ) {
            let mut weights = Vec::new();
            let total = weigh(&logits, 1.0 / temperature, &mut weights);
            let highest = f64::from(highest(&logits));
            let right: Vec<f64> = logits
                .iter()
                .map(|logit| ((f64::from(*logit) - highest) / f64::from(temperature)).exp())
                .collect();
            for (ours, right) in weights.iter().zip(&right) {
                prop_assert!((f64::from(*ours) - right).abs() <= 1e-4 * right + 1e-37);
            }
            let sum: f64 = right.iter().sum();
            prop_assert!((f64::from(total) - sum).abs() <= 1e-4 * sum);
            let (count, sum) = above(&weights, floor);
            let kept = weights.iter().filter(|weight| floor <= **weight);
            prop_assert_eq!(count, kept.clone().count());
            let right: f64 = kept.map(|weight| f64::from(*weight)).sum();
            prop_assert!((f64::from(sum) - right).abs() <= 1e-4 * right + 1e-6);
        }
    }
}
