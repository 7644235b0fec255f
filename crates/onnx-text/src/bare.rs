//! Baseline for benchmarks of text encoders: the same graph and the same batches, without requests
//! and columns.

use std::path::Path;
use std::time::Instant;

use volley_model_directory::layout;
use volley_onnx_runtime::failure::internal;
use volley_onnx_runtime::ort::session::{Session, SessionInputValue};
use volley_onnx_runtime::ort::value::Tensor;
use volley_onnx_runtime::{OnnxConfig, Runtime, session};
use volley_types::PredictError;

use crate::bare_tokens;

/// A text encoder for bare runs: its outputs are not read.
pub struct BareEncoder {
    session: Session,
    names: Vec<String>,
    tokens: Vec<i64>,
}

impl BareEncoder {
    /// Loads the text encoder in `directory`; every row will be `text`.
    ///
    /// # Errors
    /// As for serving the model.
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
            tokens: bare_tokens(directory, text)?,
            session,
        })
    }

    /// Runs about `total` rows in batches of `rows`, and returns the rate in rows per second.
    ///
    /// # Errors
    /// When a run fails.
    pub fn rate(&mut self, rows: usize, total: usize) -> Result<f64, PredictError> {
        let failed = |error: volley_onnx_runtime::ort::Error| {
            internal("a bare run failed", error.to_string())
        };
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
