//! Top-p without sorting: finds the smallest set of most likely candidates that has a given share
//! of the total weight. A large vocabulary may have many thousands of candidates.

/// Ranges of at most this size are sorted.
const SORTED: usize = 32;

/// Keeps the most likely candidates whose weights sum to at least `wanted`, and always at least
/// one. Among equal weights, earlier candidates are kept. The order of the remaining candidates
/// does not change. Weights must not be negative. The content of `keys` is overwritten.
pub(super) fn keep(candidates: &mut Vec<(f32, u32)>, wanted: f32, keys: &mut Vec<u32>) {
    keys.clear();
    keys.extend(candidates.iter().map(|(weight, _)| key(*weight)));
    let Some((last, count)) = edge(keys, f64::from(wanted)) else {
        return;
    };
    let heavier = keys[..count].iter().filter(|key| **key < last).count();
    let mut of_the_last = count - heavier;
    candidates.retain(|(weight, _)| {
        let key = key(*weight);
        let is_last = key == last && 0 < of_the_last;
        of_the_last -= usize::from(is_last);
        key < last || is_last
    });
}

/// The key of the last candidate to keep, and the number of candidates to keep, which are then the
/// first of `keys`. `None` if there are no candidates.
fn edge(keys: &mut [u32], wanted: f64) -> Option<(u32, usize)> {
    let (mut from, mut to, mut kept) = (0, keys.len(), 0.0);
    while SORTED < to - from {
        // The heavier half, unordered.
        let half = (to - from) / 2;
        keys[from..to].select_nth_unstable(half);
        let sum: f64 = keys[from..from + half].iter().map(weight).sum();
        if wanted <= kept + sum {
            to = from + half;
        } else {
            (from, kept) = (from + half, kept + sum);
        }
    }
    keys[from..to].sort_unstable();
    let within = keys[from..to].iter().position(|key| {
        kept += weight(key);
        wanted <= kept
    });
    let count = within.map_or(to, |index| from + index + 1);
    Some((*keys.get(count.checked_sub(1)?)?, count))
}

/// A key that decreases with the weight: the bits of non-negative floats have the same order as the
/// floats.
fn key(weight: f32) -> u32 {
    !weight.to_bits()
}

fn weight(key: &u32) -> f64 {
    f64::from(f32::from_bits(!key))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn of_equals_the_first_are_kept_and_there_is_always_one() {
        let kept = |weights: &[f32], wanted| {
            let mut candidates: Vec<_> = weights.iter().copied().zip(0..).collect();
            keep(&mut candidates, wanted, &mut Vec::new());
            candidates.iter().map(|(_, id)| *id).collect::<Vec<_>>()
        };
        assert_eq!(kept(&[0.25; 4], 0.5), [0, 1]);
        assert_eq!(kept(&[0.1, 0.5, 0.1, 0.3], 0.85), [0, 1, 3]);
        assert_eq!(kept(&[0.1, 0.9], 0.0), [1]);
        assert_eq!(kept(&[0.4, 0.6], 2.0), [0, 1], "more than there is");
        assert!(kept(&[], 0.5).is_empty());
    }

    proptest! {
        #[test]
        fn the_shortest_run_of_the_likeliest_is_kept_in_its_order(
            weights in proptest::collection::vec(0.0_f32..1.0, 1..400),
            top_p in 0.0_f32..1.0,
        ) {
            let all: Vec<(f32, u32)> = weights.iter().copied().zip(0..).collect();
            let mut whole = all.clone();
            whole.sort_by(|one, other| other.0.total_cmp(&one.0));
            let total: f32 = weights.iter().sum();
            let mut kept = all.clone();
            keep(&mut kept, top_p * total, &mut Vec::new());
            prop_assert!(kept.is_sorted_by_key(|(_, id)| *id));
            let weigh = |some: &[(f32, u32)]| some.iter().map(|(weight, _)| f64::from(*weight)).sum::<f64>();
            let mut likeliest = kept.clone();
            likeliest.sort_by(|one, other| other.0.total_cmp(&one.0));
            prop_assert_eq!(&likeliest[..], &whole[..kept.len()]);
            let wanted = f64::from(top_p) * weigh(&whole);
            prop_assert!(wanted <= weigh(&kept) + 0.01);
            prop_assert!(kept.len() == 1 || weigh(&likeliest[..kept.len() - 1]) <= wanted + 0.01);
        }
    }
}
