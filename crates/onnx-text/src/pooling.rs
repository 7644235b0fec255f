//! Converts the outputs of a model to the values of each row.

use volley_types::{PredictError, Task};

use super::settings::TermWeighting;
use super::texts::Tokens;
use volley_model_directory::overrides::{Activation, Pooling};
use volley_onnx_runtime::failure::internal;

/// The values of one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Values {
    /// A vector, scores, concatenated scores of all tokens, or the weights of `terms`.
    pub(super) numbers: Vec<f32>,
    /// Token ids with a weight, in ascending order.
    pub(super) terms: Vec<u32>,
}

/// How the output of a run is read. It is read in place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Readout {
    /// Whether the graph itself returns one vector per row.
    pub(super) pooled: bool,
    /// Number of dimensions, labels or terms.
    pub(super) width: usize,
    pub(super) task: Task,
    pub(super) pooling: Pooling,
    pub(super) activation: Activation,
    pub(super) weighing: TermWeighting,
}

impl Readout {
    /// Returns the values of each of `rows` from the output `numbers` of their run, whose shape is
    /// `[rows, width]`, or `[rows, longest, width]` for token vectors.
    ///
    /// # Errors
    /// `Internal` when the output has another size.
    pub(super) fn all(
        &self,
        rows: &[&Tokens],
        longest: usize,
        numbers: &[f32],
    ) -> Result<Vec<Values>, PredictError> {
        let by_row = if self.pooled { 1 } else { longest } * self.width;
        if numbers.len() != rows.len() * by_row {
            return Err(internal(
                "the model's output has an unexpected size",
                format!("{} numbers for {} rows", numbers.len(), rows.len()),
            ));
        }
        let rows = rows.iter().zip(numbers.chunks(by_row.max(1)));
        Ok(rows
            .map(|(row, numbers)| self.values(row, numbers))
            .collect())
    }

    fn values(&self, row: &Tokens, numbers: &[f32]) -> Values {
        let tokens = row.ids.len();
        let vectors = || numbers.chunks(self.width).take(tokens);
        let numbers = match self.task {
            Task::EncodeSparse => return weights(vectors(), self.width, self.weighing),
            Task::ClassifyTokens => vectors()
                .flat_map(|vector| activated(vector, self.activation))
                .collect(),
            // The activation is applied in `columns`, because a request may change it.
            Task::Rerank | Task::Classify => numbers.to_vec(),
            _ if self.pooled => numbers.to_vec(),
            _ if row.each => vectors().flatten().copied().collect(),
            _ => pooled(vectors(), self.width, tokens, self.pooling),
        };
        Values {
            numbers,
            terms: Vec::new(),
        }
    }
}

/// Combines the vectors of a row's tokens into one.
fn pooled<'v>(
    vectors: impl Iterator<Item = &'v [f32]>,
    width: usize,
    tokens: usize,
    pooling: Pooling,
) -> Vec<f32> {
    let mut vectors = vectors;
    match pooling {
        Pooling::Cls => vectors.next().unwrap_or_default().to_vec(),
        Pooling::Last => vectors.last().unwrap_or_default().to_vec(),
        Pooling::Max => {
            let mut pooled = vec![f32::NEG_INFINITY; width];
            for vector in vectors {
                for (pooled, value) in pooled.iter_mut().zip(vector) {
                    *pooled = pooled.max(*value);
                }
            }
            pooled
        }
        Pooling::Mean | Pooling::MeanSqrtLen | Pooling::WeightedMean => {
            let (mut pooled, tokens) = (vec![0.0; width], tokens.max(1) as f32);
            for (place, vector) in (1_u32..).zip(vectors) {
                let weight = match pooling {
                    Pooling::WeightedMean => place as f32,
                    _ => 1.0,
                };
                for (pooled, value) in pooled.iter_mut().zip(vector) {
                    *pooled += weight * value;
                }
            }
            let total = match pooling {
                Pooling::MeanSqrtLen => tokens.sqrt(),
                Pooling::WeightedMean => tokens * (tokens + 1.0) / 2.0,
                _ => tokens,
            };
            for value in &mut pooled {
                *value /= total;
            }
            pooled
        }
    }
}

pub(super) fn activated(numbers: &[f32], activation: Activation) -> Vec<f32> {
    match activation {
        Activation::None => numbers.to_vec(),
        Activation::Sigmoid => numbers
            .iter()
            .map(|number| 1.0 / (1.0 + (-number).exp()))
            .collect(),
        Activation::Softmax => {
            let highest = numbers.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f32> = numbers
                .iter()
                .map(|number| (number - highest).exp())
                .collect();
            let total: f32 = weights.iter().sum();
            weights.into_iter().map(|weight| weight / total).collect()
        }
    }
}

/// The weight of each term with a positive weight.
fn weights<'v>(
    vectors: impl Iterator<Item = &'v [f32]>,
    width: usize,
    weighing: TermWeighting,
) -> Values {
    let weight = |score: f32| match weighing.twice {
        true => score.ln_1p().ln_1p(),
        false => score.ln_1p(),
    };
    let mut all = vec![0.0_f32; width];
    for vector in vectors {
        for (all, score) in all.iter_mut().zip(vector) {
            if weighing.sums {
                *all += weight(score.max(0.0));
            } else {
                *all = all.max(*score);
            }
        }
    }
    let found = (0_u32..).zip(all).filter(|(_, value)| 0.0 < *value);
    let weighed = found.map(|(term, value)| match weighing.sums {
        true => (term, value),
        false => (term, weight(value)),
    });
    let (terms, numbers) = weighed.unzip();
    Values { numbers, terms }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_pooled_as_sentence_transformers_pools_them() {
        let vectors = [[1.0, 4.0], [3.0, 2.0], [5.0, 0.0], [7.0, -2.0]];
        let pooled = |pooling| pooled(vectors.iter().map(<[f32; 2]>::as_slice), 2, 4, pooling);
        assert_eq!(pooled(Pooling::Mean), [4.0, 1.0]);
        assert_eq!(pooled(Pooling::MeanSqrtLen), [8.0, 2.0]);
        // (1 + 6 + 15 + 28) / 10, (4 + 4 + 0 - 8) / 10
        assert_eq!(pooled(Pooling::WeightedMean), [5.0, 0.0]);
        assert_eq!(pooled(Pooling::Cls), [1.0, 4.0]);
        assert_eq!(pooled(Pooling::Last), [7.0, -2.0]);
        assert_eq!(pooled(Pooling::Max), [7.0, 4.0]);
    }

    #[test]
    fn terms_are_weighed_as_the_files_say() {
        let scores = [[1.0, -1.0, 0.5], [3.0, -2.0, 0.25]];
        let weighed = |sums, twice| {
            let scores = scores.iter().map(<[f32; 3]>::as_slice);
            let values = weights(scores, 3, TermWeighting { sums, twice });
            assert_eq!(values.terms, [0, 2]);
            values.numbers
        };
        let near = |found: Vec<f32>, told: [f32; 2]| {
            let mut pairs = found.iter().zip(told);
            assert!(
                pairs.all(|(found, told)| (found - told).abs() < 1e-6),
                "{found:?}"
            );
        };
        let ln = f32::ln_1p;
        near(weighed(false, false), [ln(3.0), ln(0.5)]);
        near(weighed(false, true), [ln(ln(3.0)), ln(ln(0.5))]);
        near(
            weighed(true, false),
            [ln(1.0) + ln(3.0), ln(0.5) + ln(0.25)],
        );
    }
}
