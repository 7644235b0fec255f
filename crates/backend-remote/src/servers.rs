//! The servers of one connector, and the selection of one for an item.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBuilder};
use futures::FutureExt;
use futures::future::BoxFuture;
use recloser::Error;
use url::Url;
use volley_backend::items::Item;
use volley_provider_kit::native;
use volley_provider_kit::rows::group::RowGroup;
use volley_provider_kit::rows::post_process::RowValues;
use volley_remote_http::budget::Budget;
use volley_remote_http::credential::Opener;
use volley_remote_http::limits::ConnectorLimits;
use volley_remote_http::naming::named;
use volley_remote_http::retry::{Rank, RetryState, blames_request};
use volley_types::native::PARTS;
use volley_types::registry::ConnectorSpec;
use volley_types::{ConnectorId, ErrorCode, ErrorReason, PredictError, Task};

use crate::account::Account;
use crate::answer_stream::AnswerStream;
use crate::call::UpstreamCall;
use crate::server::Server;

/// The servers of all connectors in use. Replicas with the same connector share their state.
#[derive(Debug, Default)]
pub(crate) struct AllServers(Mutex<HashMap<ConnectorId, Weak<Servers>>>);

impl AllServers {
    /// Returns the servers of a connector. Creates them if they are missing, or if the connector
    /// has changed.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn of(
        &self,
        connector: &ConnectorSpec,
        make: impl FnOnce() -> Result<Servers, PredictError>,
    ) -> Result<Arc<Servers>, PredictError> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, servers| servers.strong_count() != 0);
        let known = all.get(&connector.id).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|known| known.connector == *connector) {
            return Ok(known);
        }
        let made = Arc::new(make()?);
        all.insert(connector.id.clone(), Arc::downgrade(&made));
        Ok(made)
    }
}

/// The servers of one connector, with their limits and retry budget.
#[derive(Debug)]
pub(crate) struct Servers {
    connector: ConnectorSpec,
    pub(crate) limits: ConnectorLimits,
    pub(crate) account: Account,
    budget: Budget,
    ranks: Vec<Rank>,
    list: Vec<Server>,
}

/// An answer that has begun, and its server.
pub(crate) struct OpenAnswer<'a> {
    pub(crate) reading: AnswerStream,
    pub(crate) server: &'a Server,
}

impl Servers {
    /// Creates the connector's own server and its additional endpoints. `checked` parses their
    /// URLs.
    ///
    /// # Errors
    /// Those of `checked`; `InvalidInput` for an unknown provider, for servers with different
    /// tasks, or if a server's requests cannot be built or signed.
    pub(crate) fn new(
        connector: &ConnectorSpec,
        account: Account,
        opener: &Opener,
        checked: impl Fn(&str) -> Result<Url, PredictError>,
    ) -> Result<Self, PredictError> {
        let policy = &connector.policy;
        let own = Rank {
            weight: policy.weight,
            fallback: false,
        };
        let mut ranks = vec![own];
        let own = volley_providers::known(connector.provider)?;
        let mut all = vec![(own, connector.clone())];
        for endpoint in &policy.endpoints {
            let Rank { weight, fallback } = Rank {
                weight: endpoint.weight,
                fallback: endpoint.fallback,
            };
            ranks.push(Rank { weight, fallback });
            let provider = volley_providers::known(endpoint.provider)?;
            let spec = ConnectorSpec {
                provider: endpoint.provider,
                url: endpoint.url.clone(),
                model: endpoint.model.clone(),
                credential: endpoint.credential.clone(),
                headers: endpoint.headers.clone(),
                // A template is in the format of the connector's own server.
                request_body: connector
                    .request_body
                    .clone()
                    .filter(|_| own.is_configured() && provider.is_configured()),
                ..connector.clone()
            };
            all.push((provider, spec));
        }
        let servers = all
            .into_iter()
            .map(|(provider, connector)| Server::new(provider, connector, opener, &checked));
        let list = servers.collect::<Result<Vec<Server>, PredictError>>()?;
        let task = |server: &Server| server.rows.map(|rows| rows.task());
        if list.iter().any(|server| task(server) != task(&list[0])) {
            return Err(PredictError::invalid(
                "the connector's servers have different tasks; all of them must embed, rerank or \
                 generate",
            ));
        }
        Ok(Self {
            connector: connector.clone(),
            limits: ConnectorLimits::new(policy),
            account,
            budget: Budget::default(),
            ranks,
            list,
        })
    }

    /// Checks that the credential of each server is readable.
    ///
    /// # Errors
    /// `Unavailable` if this worker cannot read one.
    pub(crate) async fn credentials(&self) -> Result<(), PredictError> {
        for server in &self.list {
            let read = server.secret().await;
            read.map_err(|error| named(error, &server.connector))?;
        }
        Ok(())
    }

    /// The task of the servers; `None` for generation.
    pub(crate) fn task(&self) -> Option<Task> {
        self.list[0].rows.map(|rows| rows.task())
    }

    /// Native formats that at least one server accepts, and image parts if all servers accept them.
    pub(crate) fn forms(&self) -> Vec<&'static str> {
        let forms = self.list.iter();
        let forms = forms.flat_map(|server| native::forms(server.wire.provider, &server.connector));
        let mut forms: Vec<_> = forms.copied().collect();
        forms.sort_unstable();
        forms.dedup();
        if self
            .list
            .iter()
            .all(|server| native::takes_images(server.wire.provider, &server.connector))
        {
            forms.push(PARTS);
        }
        forms
    }

    /// Maximum number of rows in one call.
    pub(crate) fn step(&self) -> usize {
        let steps = self.list.iter().filter_map(|server| server.rows);
        steps.map(|rows| rows.step).min().unwrap_or(1)
    }

    /// Requests the values of a group of rows from one server after another, until one succeeds.
    /// Dropping the future aborts the current call.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub(crate) async fn ask(
        &self,
        call: &UpstreamCall,
        group: &RowGroup,
    ) -> Result<RowValues, PredictError> {
        let asked = self.first(call, |server| call.rows(server, group).boxed());
        let (server, answered) = asked.await?;
        self.account.called(&server.connector, None);
        self.account.used(answered.usage());
        Ok(answered)
    }

    /// Calls one server after another, until one has begun to answer. Dropping the future aborts
    /// the current call.
    ///
    /// # Errors
    /// The error of a server that rejects the request as invalid, or the last error if no server is
    /// left or the budget for retries is spent. `Overloaded` if the connector's rate limit is
    /// reached.
    pub(crate) async fn open(
        &self,
        call: &UpstreamCall,
        item: &Item,
    ) -> Result<OpenAnswer<'_>, PredictError> {
        let begun = self.first(call, |server| {
            AnswerStream::begun(call, server, item).boxed()
        });
        let (server, reading) = begun.await?;
        Ok(OpenAnswer { reading, server })
    }

    /// Returns the result of the first server that succeeds, with retries.
    async fn first<'a: 'f, 'f, T>(
        &'a self,
        call: &UpstreamCall,
        ask: impl Fn(&'a Server) -> BoxFuture<'f, Result<T, PredictError>>,
    ) -> Result<(&'a Server, T), PredictError> {
        let policy = &self.connector.policy;
        let mut backoffs = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(policy.retry_backoff_ms.into()))
            .with_max_times(policy.max_retries as usize)
            .with_jitter()
            .build();
        let draw = |below: u64| fastrand::u64(..below);
        let mut retry = RetryState::new(&self.ranks);
        let mut failure = None;
        self.budget.earn();
        loop {
            let at = match retry.fresh(draw) {
                Some(at) => at,
                None => {
                    let again = retry.again(draw).zip(backoffs.next());
                    let again = again.map(|((at, asked), backoff)| (at, asked.max(backoff)));
                    let again = again.filter(|(_, wait)| *wait <= call.patience(Instant::now()));
                    match again.filter(|_| self.budget.spend()) {
                        Some((at, wait)) => {
                            tokio::time::sleep(wait).await;
                            self.account.retried();
                            at
                        }
                        None => return Err(last(failure)),
                    }
                }
            };
            self.limits.turn(call.patience(Instant::now())).await?;
            let server = &self.list[at];
            if self.ranks[at].fallback {
                self.account.fell_back();
            }
            match server.guarded(ask(server)).await {
                Ok(given) => return Ok((server, given)),
                Err(Error::Inner(error)) if blames_request(&error) => {
                    self.account.called(&server.connector, Some(error.code));
                    return Err(named(error, &server.connector));
                }
                Err(Error::Inner(error)) => {
                    self.account.called(&server.connector, Some(error.code));
                    let connector = &self.connector.id;
                    tracing::info!(
                        %connector, server = at, error = error.chain(),
                        "upstream call failed"
                    );
                    retry.failed(at, &error);
                    failure = Some(named(error, &server.connector));
                }
                Err(Error::Rejected) => {
                    retry.out(at);
                    self.account.left_alone();
                    let left_alone = || named(left_alone(server.open_for), &server.connector);
                    failure = failure.or_else(|| Some(left_alone()));
                }
            }
        }
    }
}

fn left_alone(open_for: Duration) -> PredictError {
    PredictError::new(
        ErrorCode::Unavailable,
        "the circuit breaker of the remote model's server is open after too many failures; try \
         again later",
    )
    .with_retry_after(open_for)
}

/// The final error for the caller, with a wait, because an immediate retry would fail too. An
/// account without credit does not recover by waiting.
fn last(failure: Option<PredictError>) -> PredictError {
    let error = failure.unwrap_or_else(|| left_alone(Duration::from_secs(1)));
    match (error.code, error.retry_after) {
        _ if error.reason == Some(ErrorReason::QuotaExhausted) => error,
        (ErrorCode::Unavailable | ErrorCode::Overloaded, None) => {
            error.with_retry_after(Duration::from_secs(1))
        }
        _ => error,
    }
}
