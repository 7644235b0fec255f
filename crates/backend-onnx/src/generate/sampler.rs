//! Logits into the next token. The order: repetition penalty (Keskar et al., 2019),
//! temperature, top-k (Fan et al., 2018), top-p (Holtzman et al., 2020), and then a draw.

use super::options::Sampling;

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
        let Sampling {
            temperature,
            top_k,
            top_p,
            repetition_penalty,
            ..
        } = self.options;
        self.candidates.clear();
        for (id, logit) in (0_u32..).zip(logits) {
            let seen = self.seen.get(id as usize).copied().unwrap_or(false);
            let logit = penalised(*logit, seen, repetition_penalty) / temperature;
            if logit.is_finite() {
                self.candidates.push((logit, id));
            }
        }
        let by_logit = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        if 0 < top_k && top_k < self.candidates.len() {
            self.candidates.select_nth_unstable_by(top_k - 1, by_logit);
            self.candidates.truncate(top_k);
        }
        self.candidates.sort_unstable_by(by_logit);
        let Some((highest, first)) = self.candidates.first().copied() else {
            return argmax(logits.iter().copied());
        };
        for candidate in &mut self.candidates {
            candidate.0 = (candidate.0 - highest).exp();
        }
        let total: f32 = self.candidates.iter().map(|(weight, _)| weight).sum();
        let mut kept = 0.0;
        let within = self.candidates.iter().position(|(weight, _)| {
            kept += weight;
            top_p * total <= kept
        });
        // At least the most likely one stays, whatever top-p says.
        self.candidates
            .truncate(within.map_or(usize::MAX, |index| index + 1));
        let total: f32 = self.candidates.iter().map(|(weight, _)| weight).sum();
        let mut left = self.random.f32() * total;
        for (weight, id) in &self.candidates {
            left -= weight;
            if left <= 0.0 {
                return *id;
            }
        }
        first
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
            repetition_penalty,
            seed: Some(3),
        }
    }

    #[test]
    fn greedy_takes_the_largest_and_the_penalty_moves_it_on() {
        let logits = [0.0, 2.0, 1.9, f32::NAN];
        assert_eq!(
            Sampler::new(sampling(0.0, 0, 1.0, 1.0), &[], 4).choose(&logits),
            1
        );
        let mut wary = Sampler::new(sampling(0.0, 0, 1.0, 1.5), &[], 4);
        assert_eq!((wary.choose(&logits), wary.choose(&logits)), (1, 2));
    }

    #[test]
    fn draws_follow_the_distribution() {
        let mut sampler = Sampler::new(sampling(1.0, 0, 1.0, 1.0), &[], 2);
        // The odds of the second are e to 1.
        let second: u32 = (0..20_000).map(|_| sampler.choose(&[0.0, 1.0])).sum();
        let share = f64::from(second) / 20_000.0;
        assert!((share - 0.731).abs() < 0.02, "{share}");
    }

    proptest! {
        #[test]
        fn draws_stay_within_top_k_and_top_p_and_repeat_with_their_seed(
            logits in proptest::collection::vec(-20.0_f32..20.0, 2..50),
            top_k in 0_usize..10,
            top_p in 0.0_f32..=1.0,
            temperature in 0.1_f32..4.0,
        ) {
            let options = sampling(temperature, top_k, top_p, 1.0);
            let mut one = Sampler::new(options.clone(), &[], logits.len());
            let mut two = Sampler::new(options, &[], logits.len());
            for _ in 0..20 {
                let token = one.choose(&logits);
                prop_assert_eq!(token, two.choose(&logits));
                let rank = logits.iter().filter(|other| logits[token as usize] < **other).count();
                if top_k != 0 {
                    prop_assert!(rank < top_k);
                }
                let total: f32 = logits.iter().map(|logit| (logit / temperature).exp()).sum();
                let before: f32 = logits
                    .iter()
                    .filter(|other| logits[token as usize] < **other)
                    .map(|logit| (logit / temperature).exp())
                    .sum();
                prop_assert!(before / total <= top_p + 0.01 || rank == 0);
            }
        }

        #[test]
        fn odd_logits_are_survived(logits in proptest::collection::vec(any::<f32>(), 1..20)) {
            let options = sampling(0.7, 3, 0.9, 1.2);
            let token = Sampler::new(options, &[0], logits.len()).choose(&logits);
            prop_assert!((token as usize) < logits.len());
        }
    }
}
