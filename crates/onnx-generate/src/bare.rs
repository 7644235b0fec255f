//! Baseline for benchmarks of the decode loop: the same model and the same batch, without requests,
//! detokenization and streams.

use std::path::Path;
use std::time::{Duration, Instant};

use volley_onnx_runtime::{OnnxConfig, Runtime};
use volley_types::PredictError;

use crate::decoder::Decoder;
use crate::{bare_files, greedy};

/// The result of a bare run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BareReport {
    /// Number of generated tokens over all rows.
    pub tokens: usize,
    /// Time from the first prompt to the last token.
    pub elapsed: Duration,
}

impl BareReport {
    /// Generated tokens per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.tokens as f64 / self.elapsed.as_secs_f64()
    }
}

/// A model for bare runs.
pub struct BareModel {
    decoder: Decoder,
    prompt: Vec<u32>,
}

impl BareModel {
    /// Loads the generation model in `directory`; every row will start with `prompt`.
    ///
    /// # Errors
    /// As for serving the model.
    pub fn load(
        runtime: &Runtime,
        directory: &Path,
        prompt: &str,
        config: OnnxConfig,
    ) -> Result<Self, PredictError> {
        let (files, prompt) = bare_files(directory, prompt, config.max_context)?;
        Ok(Self {
            decoder: Decoder::load_as_exported(runtime, directory, &files, &config)?,
            prompt,
        })
    }

    /// Generates `tokens` tokens in each of `rows` rows together. Also returns the token ids, row
    /// by row.
    ///
    /// # Errors
    /// `InvalidInput` when `rows` is 0 or exceeds the slots; those of a failed run.
    pub fn run(
        &mut self,
        rows: usize,
        tokens: usize,
    ) -> Result<(BareReport, Vec<Vec<u32>>), PredictError> {
        if rows == 0 || self.decoder.slots() < rows {
            return Err(PredictError::invalid("more rows than slots, or none"));
        }
        let started = Instant::now();
        let mut ids = vec![Vec::with_capacity(tokens); rows];
        for (slot, ids) in ids.iter_mut().enumerate() {
            ids.push(self.decoder.prefill(slot, 0, &self.prompt, greedy)?);
        }
        let mut lengths = vec![self.prompt.len(); rows];
        for _ in 1..tokens {
            let last: Vec<u32> = ids.iter().filter_map(|ids| ids.last().copied()).collect();
            self.decoder.decode(&last, &lengths, |logits| {
                let size = logits.len() / rows;
                for (ids, logits) in ids.iter_mut().zip(logits.chunks(size)) {
                    ids.push(greedy(logits));
                }
            })?;
            for length in &mut lengths {
                *length += 1;
            }
        }
        Ok((
            BareReport {
                tokens: rows * tokens,
                elapsed: started.elapsed(),
            },
            ids,
        ))
    }
}
