//! Logits into the next token. The order: repetition penalty (Keskar et al., 2019),
//! temperature, top-k (Fan et al., 2018), top-p (Holtzman et al., 2020), min-p (Nguyen et al.,
//! 2024), and then a draw.

use std::cmp::Ordering;

use super::options::Sampling;

/// Candidates that top-p sorts at first.
const FIRST_SORTED: usize = 64;

/// Chooses tokens for one request.
#[derive(Debug)]
pub(crate) struct Sampler {
    options: Sampling,
    random: fastrand::Rng,
    /// Tokens that the penalty applies to: those of the prompt and of the answer so far.
    seen: Vec<bool>,
    /// Reused from step to step.
    candidates: Vec<(f32, u32)>,
}

impl Sampler {
    pub(crate) fn new(options: Sampling, prompt: &[u32], vocabulary: usize) -> Self {
        let random = options
            .seed
            .map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        let mut seen = Vec::new();
        if (options.repetition_penalty - 1.0).abs() > f32::EPSILON {
            seen.resize(vocabulary, false);
            for id in prompt {
                mark(&mut seen, *id);
            }
        }
        Self {
            options,
            random,
            seen,
            candidates: Vec::new(),
        }
    }

    /// The next token, given one logit for each token of the vocabulary. A logit that is no
    /// number is never chosen.
    pub(crate) fn choose(&mut self, logits: &[f32]) -> u32 {
        let greedy = self.options.temperature <= f32::EPSILON;
        let token = match (greedy, self.seen.is_empty()) {
            (true, true) => argmax(logits.iter().copied()),
            (true, false) => {
                let (seen, penalty) = (&self.seen, self.options.repetition_penalty);
                let logits = logits.iter().enumerate();
                argmax(logits.map(|(id, logit)| penalised(*logit, seen[id], penalty)))
            }
            (false, _) => self.draw(logits),
        };
        mark(&mut self.seen, token);
        token
    }

    fn draw(&mut self, logits: &[f32]) -> u32 {
        self.collect(logits);
        let top_k = self.options.top_k;
        if 0 < top_k && top_k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(top_k - 1, likelier);
            self.candidates.truncate(top_k);
            // Back in the order of ids, so that the draw does not hang on how they were chosen.
            self.candidates.sort_unstable_by_key(|(_, id)| *id);
        }
        let highest = self
            .candidates
            .iter()
            .fold(f32::NEG_INFINITY, |highest, (logit, _)| highest.max(*logit));
        for candidate in &mut self.candidates {
            candidate.0 = (candidate.0 - highest).exp();
        }
        if self.options.top_p < 1.0 {
            keep_top_p(&mut self.candidates, self.options.top_p);
        }
        let min_p = self.options.min_p;
        if 0.0 < min_p {
            // The likeliest weighs 1.
            self.candidates.retain(|(weight, _)| min_p <= *weight);
        }
        let total: f32 = self.candidates.iter().map(|(weight, _)| weight).sum();
        let mut left = self.random.f32() * total;
        for (weight, id) in &self.candidates {
            left -= weight;
            if left <= 0.0 {
                return *id;
            }
        }
        // Rounding left a crumb, or there are no candidates at all.
        argmax(logits.iter().copied())
    }

    /// The logits with penalty and temperature applied, but for those that are no numbers.
    fn collect(&mut self, logits: &[f32]) {
        let (temperature, penalty) = (self.options.temperature, self.options.repetition_penalty);
        self.candidates.clear();
        for (id, logit) in (0_u32..).zip(logits) {
            let seen = self.seen.get(id as usize).copied().unwrap_or(false);
            let logit = penalised(*logit, seen, penalty) / temperature;
            if logit.is_finite() {
                self.candidates.push((logit, id));
            }
        }
    }
}

/// The likelier first, the smaller id first among equals.
fn likelier(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// Keeps the likeliest candidates that together have at least `top_p` of all weight, and always
/// the first of them. Puts them in order; how many must be sorted for that is found by doubling,
/// as a few candidates mostly have all the weight.
fn keep_top_p(candidates: &mut Vec<(f32, u32)>, top_p: f32) {
    let total: f32 = candidates.iter().map(|(weight, _)| weight).sum();
    let (mut kept, mut sorted) = (0.0, 0);
    while sorted < candidates.len() {
        let unsorted = &mut candidates[sorted..];
        let next = sorted.max(FIRST_SORTED).min(unsorted.len());
        if next < unsorted.len() {
            unsorted.select_nth_unstable_by(next - 1, likelier);
        }
        unsorted[..next].sort_unstable_by(likelier);
        let within = unsorted[..next].iter().position(|(weight, _)| {
            kept += weight;
            top_p * total <= kept
        });
        if let Some(index) = within {
            return candidates.truncate(sorted + index + 1);
        }
        sorted += next;
    }
}

fn mark(seen: &mut [bool], id: u32) {
    if let Some(seen) = seen.get_mut(id as usize) {
        *seen = true;
    }
}

fn penalised(logit: f32, seen: bool, penalty: f32) -> f32 {
    match (seen, 0.0 < logit) {
        (false, _) => logit,
        (true, true) => logit / penalty,
        (true, false) => logit * penalty,
    }
}

/// The index of the largest number, the first of equals; 0 when there is none.
pub(crate) fn argmax(logits: impl Iterator<Item = f32>) -> u32 {
    let mut best = (f32::NEG_INFINITY, 0);
    for (id, logit) in (0_u32..).zip(logits) {
        if best.0 < logit {
            best = (logit, id);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sampling(temperature: f32, top_k: usize, top_p: f32, repetition_penalty: f32) -> Sampling {
        Sampling {
            temperature,
            top_k,
            top_p,
            min_p: 0.0,
            repetition_penalty,
            seed: Some(3),
        }
    }

    /// The share of all probability, in the precision that the sampler's f32 is judged by.
    fn shares(logits: &[f32], temperature: f32) -> Vec<f64> {
        let scaled = logits
            .iter()
            .map(|logit| f64::from(*logit) / f64::from(temperature));
        let weights: Vec<f64> = scaled.map(f64::exp).collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / total).collect()
    }

    #[test]
    fn greedy_takes_the_largest_and_the_penalty_moves_it_on() {
        let logits = [0.0, 2.0, 1.9, f32::NAN];
        let mut plain = Sampler::new(sampling(0.0, 0, 1.0, 1.0), &[], 4);
        assert_eq!((plain.choose(&logits), plain.choose(&logits)), (1, 1));
        let mut wary = Sampler::new(sampling(0.0, 0, 1.0, 1.5), &[], 4);
        assert_eq!((wary.choose(&logits), wary.choose(&logits)), (1, 2));
        let mut warned = Sampler::new(sampling(0.0, 0, 1.0, 1.5), &[1], 4);
        assert_eq!(
            warned.choose(&logits),
            2,
            "the prompt's tokens count as seen"
        );
    }

    #[test]
    fn draws_follow_the_distribution() {
        let mut sampler = Sampler::new(sampling(1.0, 0, 1.0, 1.0), &[], 2);
        // The odds of the second are e to 1.
        let second: u32 = (0..20_000).map(|_| sampler.choose(&[0.0, 1.0])).sum();
        let share = f64::from(second) / 20_000.0;
        assert!((share - 0.731).abs() < 0.02, "{share}");
    }

    #[test]
    fn min_p_leaves_out_what_is_unlikely_beside_the_likeliest() {
        let options = Sampling {
            min_p: 0.5,
            ..sampling(1.0, 0, 1.0, 1.0)
        };
        let mut sampler = Sampler::new(options, &[], 3);
        // Beside the first, the second weighs 0.61 and the third 0.37.
        let drawn: Vec<u32> = (0..500).map(|_| sampler.choose(&[2.0, 1.5, 1.0])).collect();
        assert!(drawn.contains(&0) && drawn.contains(&1) && !drawn.contains(&2));
    }

    proptest! {
        #[test]
        fn draws_stay_within_top_k_and_top_p_and_repeat_with_their_seed(
            logits in proptest::collection::vec(-20.0_f32..20.0, 2..300),
            top_k in 0_usize..10,
            top_p in 0.0_f32..=1.0,
            temperature in 0.1_f32..4.0,
        ) {
            let options = sampling(temperature, top_k, top_p, 1.0);
            let mut one = Sampler::new(options.clone(), &[], logits.len());
            let mut two = Sampler::new(options, &[], logits.len());
            let shares = shares(&logits, temperature);
            for _ in 0..20 {
                let token = one.choose(&logits);
                prop_assert_eq!(token, two.choose(&logits));
                let likelier = |other: &usize| logits[token as usize] < logits[*other];
                let before: Vec<usize> = (0..logits.len()).filter(likelier).collect();
                if top_k != 0 {
                    prop_assert!(before.len() < top_k);
                }
                let share: f64 = before.iter().map(|other| shares[*other]).sum();
                prop_assert!(share <= f64::from(top_p) + 0.001 || before.is_empty());
            }
        }

        #[test]
        fn top_p_keeps_the_shortest_run_of_the_likeliest(
            weights in proptest::collection::vec(0.0_f32..1.0, 1..400),
            top_p in 0.0_f32..1.0,
        ) {
            let mut kept: Vec<(f32, u32)> = weights.iter().copied().zip(0..).collect();
            let mut whole = kept.clone();
            whole.sort_unstable_by(likelier);
            keep_top_p(&mut kept, top_p);
            prop_assert_eq!(&kept[..], &whole[..kept.len()]);
            let weigh = |some: &[(f32, u32)]| some.iter().map(|(weight, _)| f64::from(*weight)).sum::<f64>();
            let wanted = f64::from(top_p) * weigh(&whole);
            prop_assert!(wanted <= weigh(&kept) + 0.01);
            prop_assert!(kept.len() == 1 || weigh(&kept[..kept.len() - 1]) <= wanted + 0.01);
        }

        #[test]
        fn odd_logits_are_survived(logits in proptest::collection::vec(any::<f32>(), 1..20)) {
            let options = sampling(0.7, 3, 0.9, 1.2);
            let token = Sampler::new(options, &[0], logits.len()).choose(&logits);
            prop_assert!((token as usize) < logits.len());
        }
    }
}
