//! `volley sql`.

use clap::{Args, ValueEnum};

/// Run SQL over Parquet, CSV and NDJSON files, with models as functions.
#[derive(Debug, Args)]
pub(crate) struct Sql {
    /// SQL statement. `FROM 'file.parquet'` reads a file.
    pub(crate) statement: String,
    /// Flight address of a coordinator: `grpc://HOST:PORT`, or `grpc+tls://HOST:PORT` with
    /// --ca-file.
    #[arg(long, env = "VOLLEY_FLIGHT", default_value = "grpc://127.0.0.1:8421")]
    pub(crate) flight: String,
    /// File or folder to use as a table: `--table books=books.csv`. Repeatable.
    #[arg(long = "table", value_name = "NAME=PATH", value_parser = table)]
    pub(crate) tables: Vec<(String, String)>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = SqlFormat::Table)]
    pub(crate) format: SqlFormat,
    /// Rows per model call.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(usize))]
    pub(crate) rows_per_call: usize,
    /// Timeout of one model call.
    #[arg(long, default_value = "10m")]
    pub(crate) call_timeout: humantime::Duration,
}

/// Output format of `volley sql`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum SqlFormat {
    /// Table for a terminal, at most 10,000 rows.
    Table,
    /// Comma-separated values, written as rows arrive.
    Csv,
    /// One JSON object per line, written as rows arrive.
    Json,
}

fn table(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok((name.to_owned(), path.to_owned()))
        }
        _ => Err("a table must have the form NAME=PATH".to_owned()),
    }
}
