//! The report: Markdown tables, the machine and the command.

use std::fmt::Write;

/// One table of measurements.
#[derive(Debug)]
pub(crate) struct Table {
    title: String,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
    notes: Vec<String>,
}

impl Table {
    /// Creates an empty table. `head` names the columns, starting with the row names.
    pub(crate) fn new(title: &str, head: &[&str]) -> Self {
        let head = head.iter().map(|cell| (*cell).to_owned()).collect();
        Self {
            title: title.to_owned(),
            head,
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, name: &str, cells: impl IntoIterator<Item = String>) {
        let cells = std::iter::once(name.to_owned()).chain(cells);
        self.rows.push(cells.collect());
    }

    /// Adds a sentence below the table.
    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// The table as Markdown.
    pub(crate) fn markdown(&self) -> String {
        let mut out = format!("## {}\n\n", self.title);
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        out += &line(&self.head);
        let rule: Vec<String> = (0..self.head.len())
            .map(|column| if column == 0 { "---" } else { "---:" }.to_owned())
            .collect();
        out += &line(&rule);
        for row in &self.rows {
            out += &line(row);
        }
        for note in &self.notes {
            let _ = write!(out, "\n{note}\n");
        }
        out
    }
}

/// Renders the complete report.
pub(crate) fn document(command: &str, tables: &[Table]) -> String {
    let mut out = String::from(
        "# Benchmarks\n\nThe load generator, the stand-in upstream, the coordinator and the worker run on one machine \
         and share its cores. Compare the figures with each other and with later runs, not with other \
         machines.\n\n\
         Local models beside other servers, a million texts in one exchange, and the time between two \
         rows while long prompts arrive: [peers](peers.md).\n\n",
    );
    let _ = writeln!(out, "- Machine: {}", machine());
    let _ = writeln!(out, "- Command: `{command}`\n");
    for table in tables {
        out += &table.markdown();
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or_default();
    let model = model.trim_start_matches([' ', '\t', ':']).trim();
    let cores = cpus
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let memory = read("/proc/meminfo");
    let kib: u64 = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease");
    format!(
        "{cores} cores ({model}), {} GiB, Linux {}",
        kib.div_ceil(1 << 20),
        kernel.trim()
    )
}
