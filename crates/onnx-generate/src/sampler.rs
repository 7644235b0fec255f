//! Samples the next token from logits. The order: penalties (repetition: Keskar et al., 2019;
//! presence and frequency as OpenAI defines them), temperature, top-k (Fan et al., 2018), top-p
//! (Holtzman et al., 2020), min-p (Nguyen et al., 2024), and the draw.

mod limits;
mod nucleus;
mod penalties;
mod weights;

use std::cmp::Ordering;

use volley_types::PredictError;

pub(crate) use self::limits::TokenLimits;
use self::penalties::Penalties;
use super::options::Sampling;
use volley_constraints::Constraint;

/// Thresholds of weights, relative to the most likely token, whose weight is 1.
const FLOORS: [f32; 6] = [0.3, 0.03, 0.003, 3e-4, 3e-5, 3e-6];

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SampledToken {
    pub(crate) token: u32,
    /// Its natural-log probability in the model's distribution, if requested.
    pub(crate) logprob: Option<f32>,
    /// The requested number of most likely tokens with their log probabilities, in descending
    /// order.
    pub(crate) alternatives: Vec<(f32, u32)>,
    /// Whether the token completes the required form of the answer.
    pub(crate) completes: bool,
}

/// Samples the tokens of one request.
pub(crate) struct Sampler {
    options: Sampling,
    /// Number of alternatives with log probabilities; `None` for no log probabilities.
    logprobs: Option<usize>,
    constraint: Option<Constraint>,
    random: fastrand::Rng,
    penalties: Penalties,
    limits: TokenLimits,
    /// The tokens of the answer so far.
    said: Vec<u32>,
}

/// Buffers for one choice. All requests of a model reuse them.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Logits with biases and penalties.
    bent: Vec<f32>,
    /// The weight of each token of the vocabulary.
    weights: Vec<f32>,
    /// The remaining candidates: their weights or logits, with their ids.
    candidates: Vec<(f32, u32)>,
    /// Buffer of top-p.
    keys: Vec<u32>,
}

impl Sampler {
    pub(crate) fn new(options: Sampling, prompt: &[u32], vocabulary: usize) -> Self {
        let random = options
            .seed
            .map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        Self {
            penalties: Penalties::new(&options, prompt, vocabulary),
            options,
            logprobs: None,
            constraint: None,
            random,
            limits: TokenLimits::default(),
            said: Vec::new(),
        }
    }

    /// Sets the tokens that must not be chosen.
    pub(crate) fn within(mut self, limits: TokenLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the constraint of the answer, and the number of alternatives with log probabilities.
    pub(crate) fn with(mut self, constraint: Option<Constraint>, logprobs: Option<usize>) -> Self {
        self.constraint = constraint;
        self.logprobs = logprobs;
        self
    }

    /// Continues after tokens that another replica has sampled with the same seed.
    pub(crate) fn behind(mut self, chosen: &[u32]) -> Self {
        for token in chosen {
            self.penalties.mark(*token);
            self.said.push(*token);
            self.roll();
        }
        self
    }

    /// The random number for the next token; `None` for greedy sampling.
    fn roll(&mut self) -> Option<f32> {
        let drawn = f32::EPSILON < self.options.temperature;
        drawn.then(|| self.random.f32())
    }

    /// Samples the next token from one logit for each token of the vocabulary. A NaN logit is never
    /// chosen.
    ///
    /// # Errors
    /// `InvalidInput` when the required form is too complex.
    pub(crate) fn choose(
        &mut self,
        logits: &[f32],
        scratch: &mut Scratch,
    ) -> Result<SampledToken, PredictError> {
        let mut bent = std::mem::take(&mut scratch.bent);
        let mut constraint = self.constraint.take();
        let among = self.bend(logits, &mut bent);
        let token = match &mut constraint {
            Some(constraint) => {
                let allowed = constraint.allow(among)?;
                // The constraint takes precedence over tokens that must not be chosen.
                match can_choose(allowed) {
                    true => self.choose_among(allowed, scratch),
                    false => self.choose_among(constraint.allow(logits)?, scratch),
                }
            }
            None if can_choose(among) => self.choose_among(among, scratch),
            None => self.choose_among(logits, scratch),
        };
        scratch.bent = bent;
        let completes = match &mut constraint {
            Some(constraint) => constraint.take(token)?,
            None => false,
        };
        self.constraint = constraint;
        self.penalties.mark(token);
        self.said.push(token);
        let mut chosen = SampledToken {
            token,
            logprob: None,
            alternatives: Vec::new(),
            completes,
        };
        if let Some(count) = self.logprobs {
            let (logprob, alternatives) = scores(token, logits, count, scratch);
            chosen.logprob = Some(logprob);
            chosen.alternatives = alternatives;
        }
        Ok(chosen)
    }

    /// Applies biases, penalties and limits to `logits`, if there are any.
    fn bend<'a>(&self, logits: &'a [f32], bent: &'a mut Vec<f32>) -> &'a [f32] {
        let bias = &self.options.bias;
        let held = self.limits.hold(self.said.len());
        let allowed = self.options.allowed.as_deref();
        if bias.is_empty() && self.penalties.are_none() && !held && allowed.is_none() {
            return logits;
        }
        bent.clear();
        bent.extend_from_slice(logits);
        for (id, bias) in bias.iter() {
            if let Some(logit) = bent.get_mut(*id as usize) {
                *logit += bias;
            }
        }
        self.penalties.apply(bent);
        self.limits.apply(&self.said, bent);
        if let Some(allowed) = allowed {
            for (id, logit) in (0_u32..).zip(bent.iter_mut()) {
                if allowed.binary_search(&id).is_err() {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        bent
    }

    fn choose_among(&mut self, logits: &[f32], scratch: &mut Scratch) -> u32 {
        let random = self.roll();
        let drawn = random.and_then(|random| self.draw(logits, random, scratch));
        drawn.unwrap_or_else(|| argmax(logits))
    }

    /// Draws a token by its weight, with a random number from 0 to 1; `None` if all weights are 0.
    fn draw(&self, logits: &[f32], random: f32, scratch: &mut Scratch) -> Option<u32> {
        let Scratch {
            weights,
            candidates,
            keys,
            ..
        } = scratch;
        let total = weights::weigh(logits, 1.0 / self.options.temperature, weights);
        let Sampling {
            top_k,
            top_p,
            min_p,
            ..
        } = self.options;
        let narrows = (0 < top_k && top_k < weights.len()) || top_p < 1.0 || 0.0 < min_p;
        if !narrows {
            return weights::pick(weights, random * total);
        }
        let floor = self.floor(weights, total);
        candidates.clear();
        let ids = (0_u32..).zip(weights.iter());
        let heavy = ids.filter(|(_, weight)| floor <= **weight && 0.0 < **weight);
        candidates.extend(heavy.map(|(id, _)| (logits[id as usize], id)));
        let mut total = total;
        if 0 < top_k {
            if top_k < candidates.len() {
                candidates.select_nth_unstable_by(top_k - 1, likelier);
                candidates.truncate(top_k);
                // Restore the order of ids, so that the draw does not depend on the order of
                // selection.
                candidates.sort_unstable_by_key(|(_, id)| *id);
            }
            total = candidates.iter().map(|(_, id)| weights[*id as usize]).sum();
        }
        for candidate in candidates.iter_mut() {
            candidate.0 = weights[candidate.1 as usize];
        }
        if top_p < 1.0 {
            nucleus::keep(candidates, top_p * total, keys);
        }
        if 0.0 < min_p {
            // The most likely token has the weight 1.
            candidates.retain(|(weight, _)| min_p <= *weight);
        }
        let total: f32 = candidates.iter().map(|(weight, _)| weight).sum();
        let mut left = random * total;
        for (weight, id) in candidates.iter() {
            left -= weight;
            if left <= 0.0 {
                return Some(*id);
            }
        }
        None
    }

    /// Minimum weight of candidates. Most tokens of a vocabulary have almost no weight and need not
    /// be sorted.
    fn floor(&self, weights: &[f32], total: f32) -> f32 {
        let Sampling {
            top_k,
            top_p,
            min_p,
            ..
        } = self.options;
        let top_k = if top_k < weights.len() { top_k } else { 0 };
        let enough = |(count, weight): (usize, f32)| {
            // The margin covers differences of sums in another order.
            let of_weight = 1.0 <= top_p || total * (top_p + 0.001) <= weight;
            match top_k {
                0 => of_weight,
                top_k => top_k <= count,
            }
        };
        if top_k == 0 && 1.0 <= top_p {
            return min_p;
        }
        let mut floors = FLOORS.into_iter();
        let found = floors.find(|floor| enough(weights::above(weights, *floor)));
        found.unwrap_or(0.0)
    }
}

/// The natural-log probability of a token in the model's distribution, and the `count` most likely
/// tokens with theirs.
pub(crate) fn scores(
    token: u32,
    logits: &[f32],
    count: usize,
    scratch: &mut Scratch,
) -> (f32, Vec<(f32, u32)>) {
    let total = log_total(logits, &mut scratch.weights);
    let own = logits.get(token as usize).copied();
    let own = own.unwrap_or(f32::NEG_INFINITY) - total;
    (own, likeliest(logits, total, count))
}

/// Whether any token can be chosen.
fn can_choose(logits: &[f32]) -> bool {
    logits.iter().any(|logit| f32::NEG_INFINITY < *logit)
}

/// The logarithm of the sum of all exponentials (log-sum-exp). A logit minus this is its
/// natural-log probability.
fn log_total(logits: &[f32], weights: &mut Vec<f32>) -> f32 {
    let total = weights::weigh(logits, 1.0, weights);
    weights::highest(logits) + total.ln()
}

/// The `count` most likely tokens with their log probabilities, in descending order.
fn likeliest(logits: &[f32], total: f32, count: usize) -> Vec<(f32, u32)> {
    if count == 0 {
        return Vec::new();
    }
    let tokens = (0_u32..).zip(logits).filter(|(_, logit)| logit.is_finite());
    let mut tokens: Vec<_> = tokens.map(|(id, logit)| (logit - total, id)).collect();
    if count < tokens.len() {
        tokens.select_nth_unstable_by(count - 1, likelier);
        tokens.truncate(count);
    }
    tokens.sort_unstable_by(likelier);
    tokens
}

/// Orders by descending likelihood, then by ascending id.
fn likelier(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// Index of the largest number, the first among equals; 0 if there is none.
pub(crate) fn argmax(logits: &[f32]) -> u32 {
    weights::first_largest(logits)
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
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: Some(3),
            bias: [].into(),
            allowed: None,
        }
    }

    fn next(sampler: &mut Sampler, logits: &[f32]) -> u32 {
        sampler
            .choose(logits, &mut Scratch::default())
            .unwrap()
            .token
    }

    /// The softmax in f64, as a reference for the sampler's f32.
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
        assert_eq!(
            (next(&mut plain, &logits), next(&mut plain, &logits)),
            (1, 1)
        );
        let mut wary = Sampler::new(sampling(0.0, 0, 1.0, 1.5), &[], 4);
        assert_eq!((next(&mut wary, &logits), next(&mut wary, &logits)), (1, 2));
        let mut warned = Sampler::new(sampling(0.0, 0, 1.0, 1.5), &[1], 4);
        assert_eq!(
            next(&mut warned, &logits),
            2,
            "the prompt's tokens count as seen"
        );
    }

    #[test]
    fn presence_is_taken_once_and_frequency_each_time() {
        let options = Sampling {
            presence_penalty: 0.5,
            frequency_penalty: 0.4,
            ..sampling(0.0, 0, 1.0, 1.0)
        };
        // Tokens of the prompt do not count.
        let mut sampler = Sampler::new(options, &[0], 2);
        let drawn: Vec<_> = (0..5).map(|_| next(&mut sampler, &[2.0, 1.0])).collect();
        // 2.0; 1.1; then 0.7 against 1.0; 0.7 against 0.1; 0.3 against 0.1.
        assert_eq!(drawn, [0, 0, 1, 0, 0]);
    }

    #[test]
    fn probabilities_are_the_models_own() {
        let options = sampling(0.0, 0, 1.0, 1.0);
        let mut sampler = Sampler::new(options, &[], 2).with(None, Some(2));
        let chosen = sampler
            .choose(&[0.0, 1.0], &mut Scratch::default())
            .unwrap();
        assert_eq!(chosen.token, 1);
        assert!((chosen.logprob.unwrap() + 0.313_26).abs() < 1e-4);
        let ids: Vec<_> = chosen.alternatives.iter().map(|(_, id)| *id).collect();
        assert_eq!(ids, [1, 0], "the likeliest first");
        assert_eq!(Some(chosen.alternatives[0].0), chosen.logprob);
    }

    #[test]
    fn what_must_not_be_chosen_is_not_and_what_may_alone_is() {
        let limits = TokenLimits {
            least: 2,
            ends: vec![0],
            banned: vec![vec![1, 2], vec![3]].into(),
        };
        let logits = [5.0, 3.0, 4.0, 4.5];
        let mut sampler = Sampler::new(sampling(0.0, 0, 1.0, 1.0), &[], 4).within(limits);
        let drawn: Vec<_> = (0..4).map(|_| next(&mut sampler, &logits)).collect();
        assert_eq!(drawn, [2, 2, 0, 0], "no end before two, and never a 3");
        let options = Sampling {
            allowed: Some([1, 2].into()),
            ..sampling(0.0, 0, 1.0, 1.0)
        };
        let limits = TokenLimits {
            banned: vec![vec![2, 2]].into(),
            ..TokenLimits::default()
        };
        let mut sampler = Sampler::new(options, &[], 4).within(limits);
        let drawn: Vec<_> = (0..3).map(|_| next(&mut sampler, &logits)).collect();
        assert_eq!(drawn, [2, 1, 2], "a 2 does not follow a 2");
    }

    #[test]
    fn draws_follow_the_distribution() {
        let mut sampler = Sampler::new(sampling(1.0, 0, 1.0, 1.0), &[], 2);
        // The odds of the second token are e to 1.
        let second: u32 = (0..20_000).map(|_| next(&mut sampler, &[0.0, 1.0])).sum();
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
        // Relative to the first token, the second weighs 0.61 and the third 0.37.
        let drawn: Vec<u32> = (0..500)
            .map(|_| next(&mut sampler, &[2.0, 1.5, 1.0]))
            .collect();
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
                let token = next(&mut one, &logits);
                prop_assert_eq!(token, next(&mut two, &logits));
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
        fn odd_logits_are_survived(logits in proptest::collection::vec(any::<f32>(), 1..20)) {
            let options = sampling(0.7, 3, 0.9, 1.2);
            let mut sampler = Sampler::new(options, &[0], logits.len());
            let token = next(&mut sampler, &logits);
            prop_assert!((token as usize) < logits.len());
        }
    }
}
