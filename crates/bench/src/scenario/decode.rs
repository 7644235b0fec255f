//! Decode rate of the demo model with 1, 8 and 32 concurrent requests. Alternates between a bare
//! loop over ONNX Runtime with the same batch, the engine of a worker, and a cluster over REST.

use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::load::{self, EventDialect, Target};
use crate::report::Table;
use crate::stats::median;
use crate::test_bed::TestBed;

const TOKENS: u32 = 128;
const ROUNDS: usize = 5;
const LIMIT: Duration = Duration::from_secs(120);
const PROMPT: &str = "Once upon a time";

/// Runs the scenario.
pub(crate) async fn run(bed: &TestBed) -> anyhow::Result<Table> {
    let model = bed.deploy_storyteller().await?;
    let mut table = Table::new(
        &format!(
            "Decode rate of the demo model, {TOKENS} tokens a request (median of {ROUNDS}, in turns)"
        ),
        &[
            "tokens/s",
            "bare loop",
            "engine",
            "engine : bare",
            "through the cluster",
            "cluster : bare",
        ],
    );
    for requests in [1, 8, 32] {
        let target = Target {
            address: bed.public_address().to_owned(),
            path: format!("/_plugins/_ml/models/{model}/_predict/stream"),
            body: format!(
                "{{\"parameters\":{{\"prompt\":\"{PROMPT}\",\"max_tokens\":{TOKENS},\"ignore_eos\":true}}}}"
            ),
            dialect: EventDialect::OpenSearch,
        };
        let (mut bare, mut engine, mut cluster) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let rates = [
                bed.decode_rate("bare", requests, TOKENS).await?,
                bed.decode_rate("engine", requests, TOKENS).await?,
                through_cluster(&target, requests).await?,
            ];
            if round != 0 {
                bare.push(rates[0]);
                engine.push(rates[1]);
                cluster.push(rates[2]);
            }
        }
        let ratio = |ours: &[f64]| {
            let ratios: Vec<_> = ours
                .iter()
                .zip(&bare)
                .map(|(ours, bare)| ours / bare)
                .collect();
            format!("{:.2}", median(&ratios))
        };
        let rate = |rates: &[f64]| format!("{:.0}", median(rates));
        let cells = [
            rate(&bare),
            rate(&engine),
            ratio(&engine),
            rate(&cluster),
            ratio(&cluster),
        ];
        table.row(&format!("{requests} at once"), cells);
    }
    table.note(
        "The bare loop has the machine to itself with one thread, and so does the engine with its readers. Through \
         the cluster, the coordinator, the network stack of three processes and the load generator share the two \
         cores with it."
            .to_owned(),
    );
    Ok(table)
}

async fn through_cluster(target: &Target, requests: usize) -> anyhow::Result<f64> {
    let started = Instant::now();
    load::run(target, requests, LIMIT).await?;
    let rate = requests as f64 * f64::from(TOKENS) / started.elapsed().as_secs_f64();
    ensure!(rate.is_finite(), "no time passed");
    Ok(rate)
}
