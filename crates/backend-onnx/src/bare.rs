//! The loops that ours are measured against: the same model, the same batch, and nothing else. No
//! requests, no text, no readers.

use std::path::Path;
use std::time::{Duration, Instant};

use ort::session::{Session, SessionInputValue};
use ort::value::Tensor;
use volley_types::PredictError;

use crate::generate::decoder::Decoder;
use crate::generate::{bare_files, greedy};
use crate::tensors::internal;
use crate::{OnnxConfig, Runtime, encode, layout, session};

/// What a bare run took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BareReport {
    /// Tokens that were generated, over all rows.
    pub tokens: usize,
    /// From the first prompt to the last token.
    pub elapsed: Duration,
}

impl BareReport {
    /// Tokens in a second.
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
    /// As for serving it.
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

    /// Generates `tokens` tokens in each of `rows` rows together. Gives the ids too, row by row.
    ///
    /// # Errors
    /// When a run fails, or there are more rows than slots.
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

/// A text encoder for bare runs: tokens in, whatever the graph gives out.
pub struct BareEncoder {
    session: Session,
    names: Vec<String>,
    tokens: Vec<i64>,
}

impl BareEncoder {
    /// Loads the text encoder in `directory`; every row will be `text`.
    ///
    /// # Errors
    /// As for serving it.
    pub fn load(
        runtime: &Runtime,
        directory: &Path,
        text: &str,
        config: OnnxConfig,
    ) -> Result<Self, PredictError> {
        let graph = directory.join(layout::graph(directory, None)?);
        let session = session::build_placed(runtime, &graph, &config)?.0;
        let names = session.inputs().iter().map(|input| input.name().to_owned());
        Ok(Self {
            names: names.collect(),
            tokens: encode::bare_tokens(directory, text)?,
            session,
        })
    }

    /// Rows in a second, when about `total` of them are run in batches of `rows`.
    ///
    /// # Errors
    /// When a run fails.
    pub fn rate(&mut self, rows: usize, total: usize) -> Result<f64, PredictError> {
        let failed = |error: ort::Error| internal("a bare run failed", error.to_string());
        let rows = rows.max(1);
        let runs = total.div_ceil(rows);
        let started = Instant::now();
        for _ in 0..runs {
            let mut inputs: Vec<(&str, SessionInputValue<'_>)> = Vec::new();
            for name in &self.names {
                let values = match name.as_str() {
                    "input_ids" => self.tokens.repeat(rows),
                    "attention_mask" => vec![1; rows * self.tokens.len()],
                    _ => vec![0; rows * self.tokens.len()],
                };
                let tensor = Tensor::from_array(([rows, self.tokens.len()], values));
                inputs.push((name, tensor.map_err(failed)?.into()));
            }
            self.session.run(inputs).map_err(failed)?;
        }
        Ok((runs * rows) as f64 / started.elapsed().as_secs_f64())
    }
}
