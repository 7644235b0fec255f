//! Sessions with files as tables.

use std::path::Path;
use std::sync::Arc;

use datafusion::error::Result;
use datafusion::execution::context::{SessionConfig, SessionContext};
use datafusion::execution::options::{CsvReadOptions, JsonReadOptions, ParquetReadOptions};

use crate::cluster::SqlCluster;

/// Creates a session with the functions of `cluster`. In its queries, `'file.parquet'`,
/// `'file.csv'` and `'file.json'` (one object per line) are tables.
///
/// # Errors
/// When DataFusion cannot create the session.
pub fn open(cluster: Arc<SqlCluster>) -> Result<SessionContext> {
    let config = SessionConfig::new().with_information_schema(true);
    let context = SessionContext::new_with_config(config).enable_url_table();
    crate::register(&context, &cluster);
    Ok(context)
}

/// Registers a file, or a directory of files, as the table `name`. The extension selects the
/// format: `parquet`, `csv`, `tsv`, or `json`, `ndjson` and `jsonl` for one object per line. Cancel
/// safe: if the future is dropped, the table is not registered.
///
/// # Errors
/// When the extension is unknown, or when the file cannot be read.
pub async fn add_table(context: &SessionContext, name: &str, path: &str) -> Result<()> {
    let ending = Path::new(path)
        .extension()
        .and_then(|ending| ending.to_str());
    let ending = ending.unwrap_or_default().to_ascii_lowercase();
    let dotted = format!(".{ending}");
    match ending.as_str() {
        "parquet" => {
            let options = ParquetReadOptions::default();
            context.register_parquet(name, path, options).await
        }
        "csv" => {
            let options = CsvReadOptions::new();
            context.register_csv(name, path, options).await
        }
        "tsv" => {
            let options = CsvReadOptions::new()
                .delimiter(b'\t')
                .file_extension(".tsv");
            context.register_csv(name, path, options).await
        }
        "json" | "ndjson" | "jsonl" => {
            let options = JsonReadOptions::default().file_extension(&dotted);
            context.register_json(name, path, options).await
        }
        _ => datafusion::common::plan_err!(
            "the format of '{path}' is unknown; the name must end in .parquet, .csv, .tsv, .json, \
             .ndjson or .jsonl"
        ),
    }
}
