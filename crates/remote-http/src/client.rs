//! The HTTP clients that call remote models' servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::config::RemoteConfig;
use crate::egress::CheckedResolver;

/// One client speaks HTTP/2 over one connection for each host, which carries some hundred
/// streams; several spread the load.
const CLIENTS: usize = 16;
/// Shorter than what servers and balancers in between allow an idle connection.
const POOL_IDLE: Duration = Duration::from_secs(4);

/// A stream whose caller reads slowly must not stop the others on its connection: each may
/// hold this much, in bytes, and the connection as much as all of them.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = i32::MAX as u32;

/// HTTP clients, taken in turns.
#[derive(Debug)]
pub struct Clients {
    clients: Vec<reqwest::Client>,
    turn: AtomicUsize,
}

impl Clients {
    /// Clients that check servers by the certificates of the machine's authorities.
    ///
    /// # Errors
    /// Where there are none, or a client cannot be set up otherwise.
    pub fn new(config: &RemoteConfig) -> Result<Self, reqwest::Error> {
        Self::build(config, |builder| builder)
    }

    /// Clients for servers without TLS.
    ///
    /// # Errors
    /// Where a client cannot be set up.
    pub fn without_tls(config: &RemoteConfig) -> Result<Self, reqwest::Error> {
        Self::build(config, |builder| builder.tls_certs_only([]))
    }

    fn build(
        config: &RemoteConfig,
        trust: impl Fn(reqwest::ClientBuilder) -> reqwest::ClientBuilder,
    ) -> Result<Self, reqwest::Error> {
        let resolver = Arc::new(CheckedResolver::new(config.allow_private));
        let build = || {
            let builder = reqwest::Client::builder()
                .connect_timeout(config.connect_timeout)
                .pool_idle_timeout(POOL_IDLE)
                .tcp_nodelay(true)
                .http2_initial_stream_window_size(STREAM_WINDOW)
                .http2_initial_connection_window_size(CONNECTION_WINDOW)
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy()
                .user_agent(concat!("volley/", env!("CARGO_PKG_VERSION")))
                .dns_resolver(resolver.clone());
            trust(builder).build()
        };
        Ok(Self {
            clients: (0..CLIENTS).map(|_| build()).collect::<Result<_, _>>()?,
            turn: AtomicUsize::new(0),
        })
    }

    /// The client whose turn it is.
    pub fn next(&self) -> &reqwest::Client {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        &self.clients[turn % self.clients.len()]
    }
}
