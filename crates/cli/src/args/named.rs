//! Arguments of the commands for names that stand for models.

use std::path::PathBuf;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum Aliases {
    /// Create an alias, or switch one to other targets, in one write.
    Set {
        /// Its name.
        name: String,
        /// Where requests go: a model, `name` or `name:version`, with its weight behind `=`
        /// [default weight: 1]; several split the requests.
        #[arg(required = true, value_parser = parse_target)]
        targets: Vec<(String, u32)>,
        /// A model that gets copies of requests; its answers are thrown away.
        #[arg(long)]
        mirror: Option<String>,
        /// How many of a hundred requests are copied.
        #[arg(long, requires = "mirror", default_value_t = 100.0)]
        percent: f64,
        /// Requests with the same value of this header go to the same target.
        #[arg(long, value_name = "HEADER")]
        sticky: Option<String>,
        /// A sentence for people.
        #[arg(long, default_value = "")]
        description: String,
        /// Only if the alias is still at this revision; 0: only if there is none.
        #[arg(long)]
        revision: Option<u64>,
    },
    /// Delete an alias.
    Delete {
        /// Its name.
        name: String,
        /// Only if it is still at this revision.
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
        /// Its name.
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Pipelines {
    /// Create a pipeline, or replace one, in one write.
    Set {
        /// Its name.
        name: String,
        /// Its definition: a file of TOML (`.toml`) or JSON; `-` reads JSON from standard input.
        file: PathBuf,
        /// Only if the pipeline is still at this revision; 0: only if there is none.
        #[arg(long)]
        revision: Option<u64>,
    },
    /// Delete a pipeline.
    Delete {
        /// Its name.
        name: String,
        /// Only if it is still at this revision.
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
        /// Its name.
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
