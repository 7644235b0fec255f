//! Models in DataFusion's SQL: `predict(model, …)` and its typed forms, over Arrow Flight.
//!
//! `docs/how-to/clients/datafusion.md` has examples. Reading order: [`SqlCluster`] (the models and
//! their calls), [`register`] (the functions), [`session`] (files as tables), [`output`] (results
//! as text).
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use volley_flight::client::{Access, FlightClient, FlightClientConfig};
//! use volley_sql::{ClusterConfig, SqlCluster, session};
//!
//! let config = FlightClientConfig::default();
//! let client = FlightClient::outside("127.0.0.1:8421", config, Access::default())?;
//! let cluster = SqlCluster::connect(client, ClusterConfig::default()).await?;
//! let context = session::open(cluster)?;
//! let frame = context.sql("SELECT predict('storyteller', title) FROM 'books.parquet'");
//! frame.await?.show().await?;
//! # Ok(())
//! # }
//! ```

mod cluster;
mod functions;
pub mod output;
pub mod session;
mod udf_placement;

pub use self::cluster::{ClusterConfig, SqlCluster};
pub use self::functions::register;
