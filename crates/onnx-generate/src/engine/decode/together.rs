//! Prefills short waiting prompts together. A run of a few tokens takes little longer for several
//! prompts than for one, because either reads all weights of the model.

use volley_types::PredictError;

use super::Loop;
use crate::engine::Request;
use crate::engine::running::RunningGeneration;
use crate::sampler::{SampledToken, Sampler};

/// The result of one prompt in a run.
struct PrefillResult {
    request: Request,
    sampler: Sampler,
    chosen: Option<Result<SampledToken, PredictError>>,
}

impl Loop {
    /// Prefills the first waiting prompts in one run, as many as fit into `budget` tokens including
    /// padding. Returns the number of these tokens, or 0 if fewer than two prompts can run
    /// together.
    pub(super) fn read_together(&mut self, budget: usize) -> usize {
        if self.reading.is_some() || !self.decoder.reads_together() {
            return 0;
        }
        let free = self.decoder.slots() - self.running.len();
        let first = self.waiting.iter().take(free);
        let unscored = first.take_while(|it| !it.options.scores_prompt());
        let prompts: Vec<_> = unscored.map(|it| &*it.prompt).collect();
        let anew = |prompt: &[u32]| !self.prefix_reuse || self.slots.shares(prompt) == 0;
        let apart = if self.prefix_reuse {
            self.slots.first_apart(&prompts)
        } else {
            prompts.len()
        };
        let lengths = prompts[..apart].iter().take_while(|prompt| anew(prompt));
        let (count, width) = group(lengths.map(|prompt| prompt.len()), budget);
        if count < 2 {
            return 0;
        }
        let first = self.running.len();
        let requests: Vec<_> = self.waiting.drain(..count).collect();
        for (slot, request) in (first..).zip(&requests) {
            if self.reuse_prefix(slot, &request.prompt) != 0 {
                self.slots.forget(slot);
            }
        }
        self.run_together(first, requests);
        count * width
    }

    fn run_together(&mut self, first: usize, requests: Vec<Request>) {
        let files = self.files.clone();
        let mut reads: Vec<_> = requests
            .into_iter()
            .map(|mut request| PrefillResult {
                sampler: request.sampler(&files),
                request,
                chosen: None,
            })
            .collect();
        let prompts: Vec<_> = reads
            .iter()
            .map(|read| read.request.prompt.clone())
            .collect();
        let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        let scratch = &mut self.scratch;
        let ran = self
            .decoder
            .prefill_together(first, &prompts, |index, logits| {
                let read = &mut reads[index];
                read.chosen = Some(read.sampler.choose(logits, scratch));
            });
        for (slot, prompt) in (first..).zip(&prompts) {
            self.slots.forget(slot);
            if ran.is_ok() {
                self.slots.extend(slot, prompt);
            }
        }
        let mut broken = ran.err();
        for (slot, read) in (first..).zip(reads) {
            let failed = match (&broken, read.chosen) {
                (Some(error), _) => Some(error.clone()),
                (None, Some(Ok(chosen))) => {
                    let to = self.running.len();
                    // An earlier prompt may have failed; running generations must not have gaps.
                    broken = (to != slot)
                        .then(|| self.swap_slots(to, slot).err())
                        .flatten();
                    let running = RunningGeneration::start(
                        read.request,
                        read.sampler,
                        chosen,
                        0,
                        &self.files,
                    );
                    self.running.push(running);
                    continue;
                }
                (None, Some(Err(error))) => Some(error),
                (None, None) => None,
            };
            let silent = || {
                PredictError::new(
                    volley_types::ErrorCode::Internal,
                    "the run returned no logits",
                )
            };
            let error = failed.unwrap_or_else(silent);
            read.request.fail(error, &mut self.delivery);
        }
        if let Some(error) = broken {
            // Running generations may have been moved partially.
            self.fail_all(&error);
        }
    }
}

/// Number of prompts, from the first on, to prefill together, and the length of the longest. Padded
/// to that length, they take at most `budget` tokens, of which at most half is padding.
fn group(lengths: impl Iterator<Item = usize>, budget: usize) -> (usize, usize) {
    let (mut count, mut width, mut sum) = (0, 0, 0);
    for length in lengths {
        let (next_count, next_width, next_sum) = (count + 1, length.max(width), sum + length);
        let padded = next_count * next_width;
        if length == 0 || budget < padded || 2 * next_sum < padded {
            break;
        }
        (count, width, sum) = (next_count, next_width, next_sum);
    }
    (count, width)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn as_many_as_fit_are_read_together_and_little_is_padding() {
        let group = |lengths: &[usize]| group(lengths.iter().copied(), 256);
        assert_eq!(group(&[8; 40]), (32, 8));
        assert_eq!(group(&[100, 90, 80]), (2, 100));
        assert_eq!(group(&[200, 4, 4]), (1, 200));
        assert_eq!(group(&[300, 8]), (0, 0));
        assert_eq!(group(&[8, 200, 8]), (1, 8));
        assert_eq!(group(&[]), (0, 0));
    }

    proptest! {
        #[test]
        fn a_group_never_takes_more_than_its_budget(
            lengths in proptest::collection::vec(0..400_usize, 0..50),
            budget in 0..300_usize,
        ) {
            let (count, width) = group(lengths.iter().copied(), budget);
            prop_assert!(count <= lengths.len() && count * width <= budget);
            let chosen = &lengths[..count];
            prop_assert_eq!(chosen.iter().max().copied().unwrap_or(0), width);
            prop_assert!(count * width <= 2 * chosen.iter().sum::<usize>());
        }
    }
}
