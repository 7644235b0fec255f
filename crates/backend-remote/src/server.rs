//! One server of a connector, with its circuit breaker.

use std::fmt;
use std::time::Duration;

use recloser::{AsyncRecloser, Error, Recloser};
use url::Url;
use volley_provider_kit::provider::Provider;
use volley_provider_kit::rows::format::RowsFormat;
use volley_provider_kit::wire::{self, Wire};
use volley_provider_kit::{hosted, reserved};
use volley_remote_http::credential::{Opener, Secret};
use volley_remote_http::retry::blames_server;
use volley_remote_http::signing::Signer;
use volley_types::PredictError;
use volley_types::registry::{ConnectorPolicy, ConnectorSpec};

/// Number of calls after which a half-open circuit breaker decides. It opens again if at least half
/// of them failed, and closes otherwise.
const PROBES: usize = 3;

/// A server, described by a connector of its own.
pub(crate) struct Server {
    pub(crate) connector: ConnectorSpec,
    opener: Opener,
    pub(crate) url: Url,
    /// The URL for answers that are not streamed.
    pub(crate) whole_url: Url,
    /// Whether the server streams every answer.
    pub(crate) streams_always: bool,
    /// Whether tools may run at the provider.
    pub(crate) runs_tools: bool,
    /// The reader of answers.
    pub(crate) wire: Wire,
    /// The format of rows, for servers that embed or rerank.
    pub(crate) rows: Option<RowsFormat>,
    /// The signer, for servers that require signed requests.
    pub(crate) signer: Option<Signer>,
    breaker: Option<AsyncRecloser>,
    pub(crate) open_for: Duration,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl Server {
    /// Creates the server of a connector of `provider`. `checked` parses its URL.
    ///
    /// # Errors
    /// Those of `checked`; `InvalidInput` if its requests cannot be built or signed.
    pub(crate) fn new(
        provider: &'static Provider,
        connector: ConnectorSpec,
        opener: &Opener,
        checked: &impl Fn(&str) -> Result<Url, PredictError>,
    ) -> Result<Self, PredictError> {
        let given = checked(&connector.url)?;
        let whole_url = wire::whole_url(provider, given.clone());
        let url = wire::url(provider, given);
        // The template decides whether such a server streams.
        let streams_always =
            provider.is_configured() || reserved::always_streams(&connector.parameters)?;
        let runs_tools = hosted::allowed(&connector.parameters)?;
        let rows = RowsFormat::of(provider, &connector)?;
        Ok(Self {
            breaker: breaker(&connector.policy),
            open_for: Duration::from_millis(connector.policy.breaker_open_ms.into()),
            signer: Signer::of(provider, &connector, &url)?,
            wire: match rows {
                Some(_) => Wire::from(provider),
                None => Wire::of(provider, &connector)?,
            },
            rows,
            connector,
            opener: opener.clone(),
            url,
            whole_url,
            streams_always,
            runs_tools,
        })
    }

    /// Reads the server's credential. Cancel safe.
    ///
    /// # Errors
    /// `Unavailable` if this worker cannot read it.
    pub(crate) async fn secret(&self) -> Result<Option<Secret>, PredictError> {
        Ok(match &self.connector.credential {
            Some(reference) if self.signer.is_some() => {
                Some(Secret::read_keys(reference, &self.opener).await?)
            }
            Some(reference) => Some(Secret::read(reference, &self.opener).await?),
            None => None,
        })
    }

    /// Runs `work` unless the circuit breaker is open. A dropped future does not count as a call.
    ///
    /// # Errors
    /// `Error::Rejected` if the breaker is open, `Error::Inner` with the error of `work`.
    pub(crate) async fn guarded<T>(
        &self,
        work: impl Future<Output = Result<T, PredictError>>,
    ) -> Result<T, Error<PredictError>> {
        match &self.breaker {
            Some(breaker) => breaker.call_with(blames_server, work).await,
            None => work.await.map_err(Error::Inner),
        }
    }

    /// Records a failure inside an answer.
    pub(crate) async fn failed(&self, error: &PredictError) {
        if let Some(breaker) = self.breaker.as_ref().filter(|_| blames_server(error)) {
            let _: Result<(), Error<()>> = breaker.call(std::future::ready(Err(()))).await;
        }
    }
}

fn breaker(policy: &ConnectorPolicy) -> Option<AsyncRecloser> {
    let window = (policy.breaker_window != 0).then_some(policy.breaker_window as usize)?;
    let built = Recloser::custom()
        .error_rate(0.5)
        .closed_len(window)
        .half_open_len(PROBES)
        .open_wait(Duration::from_millis(policy.breaker_open_ms.into()))
        .build();
    Some(AsyncRecloser::from(built))
}
