//! Arguments of the commands for names that stand for models.

use std::path::PathBuf;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum Alias {
    /// Create an alias, or replace its targets, in one write.
    Set {
        /// Name.
        name: String,
        /// Target models, `name` or `name:version`, each optionally with `=WEIGHT` [default
        /// weight: 1]. Several targets split the requests by weight.
        #[arg(required = true, value_parser = parse_target)]
        targets: Vec<(String, u32)>,
        /// Model that receives copies of requests. Its responses are discarded.
        #[arg(long)]
        mirror: Option<String>,
        /// Percentage of requests that are copied.
        #[arg(long, requires = "mirror", default_value_t = 100.0)]
        percent: f64,
        /// Send requests with the same value of this header to the same target.
        #[arg(long, value_name = "HEADER")]
        sticky: Option<String>,
        /// Description for people.
        #[arg(long, default_value = "")]
        description: String,
        /// Write only if the alias is at this revision; 0 means it must not exist.
        #[arg(long)]
        revision: Option<u64>,
    },
    /// Delete an alias.
    Delete {
        /// Name.
        name: String,
        /// Delete only at this revision.
        #[arg(long)]
        revision: Option<u64>,
    },
    /// List all aliases.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show an alias, as JSON.
    Show {
        /// Name.
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Pipeline {
    /// Create a pipeline, or replace one, in one write.
    Set {
        /// Name.
        name: String,
        /// Definition: a TOML (`.toml`) or JSON file. `-` reads JSON from standard input.
        file: PathBuf,
        /// Write only if the pipeline is at this revision; 0 means it must not exist.
        #[arg(long)]
        revision: Option<u64>,
    },
    /// Delete a pipeline.
    Delete {
        /// Name.
        name: String,
        /// Delete only at this revision.
        #[arg(long)]
        revision: Option<u64>,
    },
    /// List all pipelines.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show a pipeline, as JSON.
    Show {
        /// Name.
        name: String,
    },
}

/// `name`, `name:version`, either perhaps with `=weight`.
fn parse_target(text: &str) -> Result<(String, u32), String> {
    match text.split_once('=') {
        None => Ok((text.to_owned(), 1)),
        Some((model, weight)) => {
            let weight = weight.parse();
            let weight = weight.map_err(|_| "the weight must be a whole number".to_owned())?;
            Ok((model.to_owned(), weight))
        }
    }
}
