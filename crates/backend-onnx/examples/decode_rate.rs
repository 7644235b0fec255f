//! Prints the decode rate of a bare loop over ONNX Runtime: `decode_rate DIRECTORY PROMPT`.
//! For each line `ROWS TOKENS` on standard input it generates once and prints the tokens in a
//! second, so that a benchmark can take turns with it.

use std::io::{BufRead, Write};
use std::path::Path;

use anyhow::Context;
use volley_backend_onnx::bare::BareModel;
use volley_backend_onnx::{Device, OnnxConfig, Runtime};

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, prompt] = arguments.as_slice() else {
        anyhow::bail!("usage: decode_rate DIRECTORY PROMPT; then lines of ROWS TOKENS");
    };
    let runtime = Runtime::init(&Runtime::locate(None)?)?;
    let config = OnnxConfig { device: Device::Cpu, ..OnnxConfig::default() };
    let mut model = BareModel::load(&runtime, Path::new(directory), prompt, config)?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (rows, tokens) = line.split_once(' ').context("write ROWS TOKENS")?;
        let (report, _) = model.run(rows.parse()?, tokens.parse()?)?;
        writeln!(std::io::stdout(), "{}", report.rate())?;
    }
    Ok(())
}
