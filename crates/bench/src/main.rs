//! Benchmarks of a Volley cluster: starts its processes, generates load, and prints the costs.
//! `scripts/bench.sh` builds and runs it.

mod http_load;
mod load;
mod process;
mod report;
mod scenario;
mod standin;
mod stats;
mod test_bed;

use std::io::Write;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::scenario::{cpu, decode, latency, memory, start};
use crate::test_bed::TestBed;

#[derive(Debug, Parser)]
#[command(about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure, and print the report.
    Run {
        /// Only these: cpu, latency, memory, decode, start.
        only: Vec<String>,
        /// Write the report to this file as well.
        #[arg(long)]
        write: Option<PathBuf>,
        /// Streams of the latency runs.
        #[arg(long, value_delimiter = ',', default_values_t = [250, 1_000])]
        streams: Vec<usize>,
        /// Rounds of starts and failovers.
        #[arg(long, default_value_t = 5)]
        rounds: usize,
    },
    /// Send one request again and again to any server, and print rate and times as JSON.
    Post(http_load::HttpLoad),
    /// The stand-in upstream.
    Standin {
        /// Where to listen.
        #[arg(long)]
        port: u16,
    },
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        anyhow::bail!("a crypto provider was installed before");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match arguments.command {
            Command::Standin { port } => {
                let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
                standin::serve(listener).await
            }
            Command::Post(post) => {
                writeln!(std::io::stdout(), "{}", post.run().await?)?;
                Ok(())
            }
            Command::Run {
                only,
                write,
                streams,
                rounds,
            } => run(&only, write, &streams, rounds).await,
        }
    })
}

async fn run(
    only: &[String],
    write: Option<PathBuf>,
    streams: &[usize],
    rounds: usize,
) -> anyhow::Result<()> {
    let wanted = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
    let bed = TestBed::start().await?;
    let mut tables = Vec::new();
    let mut say = std::io::stderr();
    writeln!(say, "logs are in {}", bed.folder().display())?;
    if wanted("cpu") {
        writeln!(say, "CPU per chunk ...")?;
        tables.push(cpu::run(&bed).await?);
    }
    if wanted("latency") {
        writeln!(say, "latency ...")?;
        for streams in streams {
            tables.push(latency::run(&bed, *streams).await?);
        }
    }
    if wanted("memory") {
        writeln!(say, "memory per stream ...")?;
        tables.push(memory::run(&[1_000, 5_000]).await?);
    }
    if wanted("decode") {
        writeln!(say, "decode rate ...")?;
        tables.push(decode::run(&bed).await?);
    }
    if wanted("start") {
        writeln!(say, "starts and failovers ...")?;
        tables.push(start::run(&bed, rounds).await?);
    }
    let document = report::document("scripts/bench.sh", &tables);
    std::io::stdout().write_all(document.as_bytes())?;
    if let Some(path) = write {
        std::fs::write(path, document)?;
    }
    Ok(())
}
