//! Output for terminals and pipes.

use std::io::Write;

/// Standard output or standard error.
pub(crate) struct Terminal(Box<dyn Write>);

impl Terminal {
    pub(crate) fn stdout() -> Self {
        Self(Box::new(std::io::stdout()))
    }

    pub(crate) fn stderr() -> Self {
        Self(Box::new(std::io::stderr()))
    }

    /// Writes bytes unchanged, and flushes.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.0.write_all(bytes)?;
        Ok(self.0.flush()?)
    }

    pub(crate) fn line(&mut self, text: &str) -> anyhow::Result<()> {
        self.raw(format!("{text}\n").as_bytes())
    }

    pub(crate) fn json(&mut self, value: &impl serde::Serialize) -> anyhow::Result<()> {
        self.line(&serde_json::to_string_pretty(value)?)
    }

    /// Writes a table with a header. Columns are as wide as their content.
    pub(crate) fn table(&mut self, head: &[&str], rows: &[Vec<String>]) -> anyhow::Result<()> {
        let width = |column: usize| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([head[column].len()]).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..head.len()).map(width).collect();
        let head = head.iter().map(|cell| (*cell).to_owned()).collect();
        for row in std::iter::once(&head).chain(rows) {
            let cells = row
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:width$}"));
            let line: Vec<_> = cells.collect();
            self.line(line.join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// The reader of our output has gone: nothing to complain about.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
