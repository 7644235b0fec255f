//! `model_warmup`: runs before the first request.

use super::fields::{messages, number, plain, string};
use super::text::Message;

/// Maximum number of runs of all samples together.
const MAX_RUNS: usize = 1_000;

/// A warm-up sample: a number of rows with a shape for each input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The sample's name.
    pub name: String,
    /// Number of rows of each run.
    pub rows: usize,
    /// Number of runs.
    pub runs: usize,
    /// The shapes of inputs, without the batch dimension.
    pub inputs: Vec<(String, Vec<usize>)>,
}

impl Sample {
    /// Reads all samples of a configuration.
    pub(super) fn all(message: &Message) -> Result<Vec<Self>, String> {
        let samples = messages(message, "model_warmup")?.into_iter();
        let samples: Vec<Self> = samples.map(Self::read).collect::<Result<_, _>>()?;
        let runs = samples.iter().map(|sample| sample.runs);
        if MAX_RUNS < runs.fold(0, usize::saturating_add) {
            return Err(format!("'model_warmup' has more than {MAX_RUNS} runs"));
        }
        Ok(samples)
    }

    fn read(message: &Message) -> Result<Self, String> {
        let input = |entry: &Message| {
            let key = string(entry, "key")?.ok_or("an input of 'model_warmup' has no key")?;
            let value = messages(entry, "value")?.pop();
            let value = value.ok_or_else(|| format!("'{key}' of 'model_warmup' has no value"))?;
            let dims = value.all("dims").map(|dim| plain(dim, "dims"));
            Ok((key, dims.collect::<Result<_, String>>()?))
        };
        let inputs = messages(message, "inputs")?.into_iter().map(input);
        Ok(Self {
            name: string(message, "name")?.unwrap_or_default(),
            rows: number(message, "batch_size")?.unwrap_or(1).max(1),
            runs: number(message, "count")?.unwrap_or(1).max(1),
            inputs: inputs.collect::<Result<_, String>>()?,
        })
    }
}
