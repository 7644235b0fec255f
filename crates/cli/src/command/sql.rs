//! `volley sql`.

use std::path::Path;

use anyhow::Context;
use volley_flight::client::{Access, FlightClient, FlightClientConfig};
use volley_sql::output::{self, OutputFormat};
use volley_sql::{ClusterConfig, SqlCluster, session};

use crate::args::{Sql, SqlFormat};

/// Runs a statement over files, and streams the rows to standard output.
pub(crate) async fn run(
    sql: Sql,
    key: Option<&str>,
    authority: Option<&Path>,
) -> anyhow::Result<()> {
    let client = connect(&sql.flight, key, authority)?;
    let config = ClusterConfig {
        rows_per_call: sql.rows_per_call,
        call_timeout: sql.call_timeout.into(),
    };
    let cluster = SqlCluster::connect(client, config)
        .await
        .map_err(|error| anyhow::anyhow!("{}", error.message))
        .context("asking the coordinator for its models (see --flight)")?;
    let context = session::open(cluster)?;
    for (name, path) in &sql.tables {
        session::add_table(&context, name, path).await?;
    }
    let rows = context.sql(&sql.statement).await?.execute_stream().await?;
    let format = match sql.format {
        SqlFormat::Table => OutputFormat::Table,
        SqlFormat::Csv => OutputFormat::Csv,
        SqlFormat::Json => OutputFormat::Json,
    };
    output::write(rows, format, &mut std::io::stdout()).await?;
    Ok(())
}

/// `grpc+tls://` needs a CA certificate to verify the coordinator.
fn connect(
    flight: &str,
    key: Option<&str>,
    authority: Option<&Path>,
) -> anyhow::Result<FlightClient> {
    let (address, tls) = match flight.strip_prefix("grpc+tls://") {
        Some(address) => (address, true),
        None => (flight.strip_prefix("grpc://").unwrap_or(flight), false),
    };
    let authority = match (tls, authority) {
        (false, _) => None,
        (true, None) => anyhow::bail!("give --ca-file with the authority of the coordinators"),
        (true, Some(file)) => Some(
            std::fs::read(file)
                .with_context(|| format!("reading the authority {}", file.display()))?,
        ),
    };
    let access = Access {
        key: key.filter(|key| !key.is_empty()).map(str::to_owned),
        authority,
    };
    let client = FlightClient::outside(address, FlightClientConfig::default(), access);
    client.map_err(|error| anyhow::anyhow!("{}", error.message))
}
