//! Resident memory per idle stream: streams that have had their first chunk and wait.

use std::time::Duration;

use anyhow::Context;
use futures::StreamExt;

use crate::bed::Bed;
use crate::report::Table;
use crate::standin::Script;

const LIMIT: Duration = Duration::from_secs(60);
/// Streams that are opened at the same moment, so that connecting does not become a flood.
const OPENING: usize = 64;

/// Measures with each of `counts` streams, and tells.
pub(crate) async fn run(bed: &Bed, counts: &[usize]) -> anyhow::Result<Table> {
    let script = Script {
        chunks: 2,
        delay: Duration::ZERO,
        hold_after: Some(1),
        stamped: false,
    };
    let target = bed.remote_model("memory", &script).await?;
    // One stream warms up what is allocated once.
    drop(target.open().await?);
    let mut table = Table::new(
        "Resident memory per idle stream",
        &["KiB per stream", "coordinator", "worker"],
    );
    for count in counts {
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
        bed.wait_until_idle().await?;
    }
    table.note("Growth of VmRSS over the streams that caused it, on nodes that had served the runs above; freed memory that the allocator keeps makes the second line the smaller one.".to_owned());
    Ok(table)
}
