//! Resident memory per idle stream: streams that have received their first chunk and wait.

use std::time::Duration;

use anyhow::Context;
use futures::StreamExt;

use crate::report::Table;
use crate::standin::Script;
use crate::test_bed::TestBed;

const LIMIT: Duration = Duration::from_secs(60);
/// Maximum number of streams that are opened at the same time, to avoid a burst of connections.
const OPENING: usize = 64;

/// Runs the scenario for each number of streams in `counts`.
pub(crate) async fn run(counts: &[usize]) -> anyhow::Result<Table> {
    let script = Script {
        chunks: 2,
        delay: Duration::ZERO,
        hold_after: Some(1),
        stamped: false,
    };
    let mut table = Table::new(
        "Resident memory per idle stream",
        &["KiB per stream", "coordinator", "worker"],
    );
    for count in counts {
        // New processes for each count: memory that is retained from an earlier run would hide the
        // usage.
        let bed = TestBed::start().await?;
        let target = bed.remote_model("memory", &script).await?;
        // One stream warms up allocations that occur once.
        drop(target.open().await?);
        bed.wait_until_idle().await?;
        let before = bed.rss()?;
        let opening = (0..*count).map(|_| async {
            let mut stream = target.open().await?;
            stream.next().await?.context("no first chunk")?;
            anyhow::Ok(stream)
        });
        let opened = futures::stream::iter(opening).buffer_unordered(OPENING);
        let opened: Vec<_> = tokio::time::timeout(LIMIT, opened.collect()).await?;
        let streams = opened.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        let after = bed.rss()?;
        let per = |index: usize| {
            let grown = after[index].saturating_sub(before[index]);
            format!("{:.1}", grown as f64 / 1024.0 / *count as f64)
        };
        table.row(&format!("{count} streams"), [per(0), per(1)]);
        drop(streams);
    }
    table.note("Growth of VmRSS divided by the number of streams, on new processes. Each stream has one HTTP connection in and one out.".to_owned());
    Ok(table)
}
