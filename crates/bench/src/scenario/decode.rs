//! Decode rate of the demo model: through the whole cluster over REST at 1, 8 and 32 requests
//! at once, beside a bare loop over ONNX Runtime with the same batch, in turns.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::bed::Bed;
use crate::load::{self, Dialect, Target};
use crate::report::Table;
use crate::stats::median;

const TOKENS: u32 = 128;
const ROUNDS: usize = 5;
const LIMIT: Duration = Duration::from_secs(120);
const PROMPT: &str = "Once upon a time";

/// Measures and tells.
pub(crate) async fn run(bed: &Bed) -> anyhow::Result<Table> {
    let model = bed.deploy_storyteller().await?;
    let mut table = Table::new(
        &format!(
            "Decode rate of the demo model, {TOKENS} tokens a request (median of {ROUNDS}, in turns)"
        ),
        &["tokens/s", "bare loop", "through the cluster", "ratio"],
    );
    for requests in [1, 8, 32] {
        let target = Target {
            address: bed.public_address().to_owned(),
            path: format!("/_plugins/_ml/models/{model}/_predict/stream"),
            body: format!(
                "{{\"parameters\":{{\"prompt\":\"{PROMPT}\",\"max_tokens\":{TOKENS},\"ignore_eos\":true}}}}"
            ),
            dialect: Dialect::OpenSearch,
        };
        let (mut ours, mut bare, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let bare_rate = bed
                .bare_decode_rate(requests, TOKENS)
                .await
                .context("the bare loop")?;
            let started = Instant::now();
            load::run(&target, requests, LIMIT).await?;
            let tokens = requests as f64 * f64::from(TOKENS);
            let rate = tokens / started.elapsed().as_secs_f64();
            ensure!(rate.is_finite(), "no time passed");
            if round != 0 {
                ours.push(rate);
                bare.push(bare_rate);
                ratios.push(rate / bare_rate);
            }
        }
        let cells = [
            format!("{:.0}", median(&bare)),
            format!("{:.0}", median(&ours)),
            format!("{:.2}", median(&ratios)),
        ];
        table.row(&format!("{requests} at once"), cells);
    }
    Ok(table)
}
