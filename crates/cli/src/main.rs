//! The `volley` binary: arguments, configuration, signals and wiring; no logic of its own.

mod args;
mod command;
mod config;
mod node;
mod printed;
mod signals;
mod terminal;
mod traced;

use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches};
use futures::FutureExt;
use volley_telemetry::init_logging;

use crate::args::{Arguments, Command, Key, Model, Secret};
use crate::terminal::Terminal;

/// mimalloc, because a node allocates and frees many small buffers on many threads: a record batch
/// for each token of each stream.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // rustls panics at the first connection if two crypto providers are compiled in and none is
    // chosen. Install ring before any other code can install another one.
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        tracing::debug!("crypto provider already installed");
    }
    // Before any other thread starts: it restricts itself and becomes another program.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|it| it == "python-host")
    {
        return volley_backend_python::keeper_main();
    }
    let matches = Arguments::command().get_matches();
    let names_url = matches.value_source("url") != Some(ValueSource::DefaultValue);
    let arguments = match Arguments::from_arg_matches(&matches) {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    let filter = arguments
        .log
        .clone()
        .unwrap_or_else(|| node::default_filter(&arguments.command));
    if let Err(error) = init_logging(arguments.log_format.into(), &filter) {
        return fail(&anyhow::Error::msg(error.to_string()));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let result = match runtime {
        // `block_on` has a copy of its future's code for each kind of runtime, unless that is boxed.
        Ok(runtime) => runtime.block_on(run(arguments, names_url).boxed_local()),
        Err(error) => Err(anyhow::Error::new(error).context("starting the runtime")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if terminal::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    // There is no other way to report that standard error is not writable.
    let _ = Terminal::stderr().line(&format!("error: {error:#}"));
    ExitCode::FAILURE
}

/// `names_url` is whether the coordinators were given on the command line.
async fn run(arguments: Arguments, names_url: bool) -> anyhow::Result<()> {
    let key = arguments.api_key.as_deref();
    let client = || command::connect(&arguments.url, key, arguments.ca_file.as_deref());
    let each = || command::connect_each(&arguments.url, key, arguments.ca_file.as_deref());
    match arguments.command {
        Command::Top(top) => command::top::run(&each()?, top.interval, top.count).await,
        Command::Doctor(doctor) => {
            let named = names_url || doctor.config.is_none();
            let clients = if named { each()? } else { Vec::new() };
            let scope = command::doctor::CheckScope {
                config: doctor.config.as_deref(),
                offline: doctor.offline,
                clients: &clients,
                connect: &|url: &str| {
                    command::connect(&[url.to_owned()], key, arguments.ca_file.as_deref())
                },
            };
            command::doctor::run(&scope).await
        }
        Command::Up(up) => node::up::run(up).await,
        Command::Dev(dev) => node::dev::run(dev).await,
        Command::Coordinator(given) => {
            let file = config::coordinator::read_with(&given.config, &given.cors_origins)?;
            node::coordinator::run_until_signal(file).await
        }
        Command::Worker { config, fake } => {
            let mut file = config::worker::read(&config)?;
            file.allow_fake = fake.allow_fake_backend;
            node::worker::run_until_signal(file).await
        }
        Command::ModelHost => node::model_host::run().await,
        Command::Model(Model::Inspect {
            path,
            variant,
            model_config,
            json,
        }) => command::inspect::run(&path, variant, model_config.as_deref(), json).await,
        Command::Model(Model::Manifest { path }) => command::inspect::manifest(&path).await,
        Command::Model(model) => command::model::run(&client()?, model).await,
        Command::Connector(connector) => command::connector::run(&client()?, connector).await,
        Command::Alias(alias) => command::alias::run(&client()?, alias).await,
        Command::Pipeline(pipeline) => command::pipeline::run(&client()?, pipeline).await,
        Command::Secret(Secret::MasterKey) => command::secret::master_key(),
        Command::Secret(secret) => command::secret::run(&client()?, secret).await,
        Command::Key(Key::Bootstrap) => command::key::bootstrap(),
        Command::Key(key) => command::key::run(&client()?, key).await,
        Command::Audit { file } => command::key::verify_audit(&file),
        Command::Cluster(cluster) => command::cluster::run(&client()?, cluster).await,
        Command::Backup(backup) => command::backup::take(&client()?, backup).await,
        Command::Restore(restore) => command::backup::restore(restore).await,
        Command::Recover(recover) => command::backup::recover(&recover),
        Command::Predict(predict) => command::predict::run(&client()?, predict).await,
        #[cfg(feature = "sql")]
        Command::Sql(sql) => command::sql::run(sql, key, arguments.ca_file.as_deref()).await,
        Command::Drain(drain) => command::drain::run(&client()?, drain).await,
        Command::Undrain(node) => command::drain::undo(&client()?, node).await,
        Command::Status { json } => command::status::run(&client()?, json).await,
        Command::Config(config) => command::config::run(&config),
        Command::Completions { shell } => {
            let mut out = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "volley", &mut out);
            Terminal::stdout().raw(&out)
        }
    }
}

#[cfg(test)]
mod tests;
