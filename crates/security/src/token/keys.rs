//! Public keys of an issuer, and their sources.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use jsonwebtoken::jwk::{Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use tokio::sync::Notify;
use tokio::time::sleep;
use volley_types::PredictError;

use super::{FetchKeys, KeySource};
use crate::live::Live;

/// Interval between two fetches of a URL.
const FETCH_EVERY: Duration = Duration::from_secs(300);
/// Minimum time between two fetches, regardless of how many tokens name unknown keys.
const FETCH_GAP: Duration = Duration::from_secs(30);
/// Delay before the first retry of a failed fetch; it doubles with every retry.
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// Maximum number of keys in a set.
const MAX_KEYS: usize = 100;

/// The public keys of an issuer.
#[derive(Debug)]
pub(super) struct KeySet(Vec<Key>);

#[derive(Debug)]
struct Key {
    id: Option<String>,
    /// The algorithm of the key, if declared.
    algorithm: Option<Algorithm>,
    key: DecodingKey,
}

impl KeySet {
    /// Reads a JWK Set. Unsupported keys are skipped.
    pub(super) fn parse(json: &[u8]) -> Result<Self, PredictError> {
        let set: JwkSet = serde_json::from_slice(json)
            .map_err(|error| no_keys().with_source(format!("a JWK Set: {error}")))?;
        let keys: Vec<_> = set
            .keys
            .iter()
            .take(MAX_KEYS)
            .filter_map(Key::usable)
            .collect();
        match keys.is_empty() {
            true => Err(no_keys()),
            false => Ok(Self(keys)),
        }
    }

    /// The key with the id `id`. Without an id, the only key for `algorithm`.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&DecodingKey> {
        let mut fit = self.0.iter().filter(|key| {
            key.algorithm.is_none_or(|only| only == algorithm)
                && key.key.family() == algorithm.family()
                && id.is_none_or(|id| key.id.as_deref() == Some(id))
        });
        let found = fit.next()?;
        // Without an id, the choice must be unambiguous.
        (id.is_some() || fit.next().is_none()).then_some(&found.key)
    }
}

impl Key {
    fn usable(jwk: &Jwk) -> Option<Self> {
        let common = &jwk.common;
        let for_signatures = common.public_key_use.as_ref();
        if for_signatures.is_some_and(|used| *used != PublicKeyUse::Signature) {
            return None;
        }
        let algorithm = common.key_algorithm.map(|named| named.to_string().parse());
        Some(Self {
            id: common.key_id.clone(),
            algorithm: algorithm.transpose().ok()?,
            key: DecodingKey::from_jwk(jwk).ok()?,
        })
    }
}

/// A source of keys, with the latest valid keys.
#[derive(Debug)]
pub(super) enum Source {
    File(Arc<Live<KeySet>>),
    Url {
        url: String,
        keys: ArcSwapOption<KeySet>,
        look: Notify,
    },
}

impl Source {
    pub(super) fn open(source: KeySource) -> Result<Self, PredictError> {
        Ok(match source {
            KeySource::File(path) => Self::File(Live::load(vec![path], |contents| {
                let all = contents.first().map(Vec::as_slice);
                KeySet::parse(all.unwrap_or_default())
            })?),
            KeySource::Url(url) => Self::Url {
                url,
                keys: ArcSwapOption::empty(),
                look: Notify::new(),
            },
        })
    }

    pub(super) fn current(&self) -> Option<Arc<KeySet>> {
        match self {
            Self::File(live) => Some(live.current()),
            Self::Url { keys, .. } => keys.load_full(),
        }
    }

    /// Requests a fetch, because a token named an unknown key. No effect for a file.
    pub(super) fn look_again(&self) {
        if let Self::Url { look, .. } = self {
            look.notify_one();
        }
    }

    /// Refreshes the keys periodically, forever. Cancel safe.
    pub(super) async fn keep_fresh(&self, fetch: &FetchKeys, interval: Duration) {
        let (url, keys, look) = match self {
            Self::File(live) => return live.clone().keep_fresh("issuer keys", interval).await,
            Self::Url { url, keys, look } => (url, keys, look),
        };
        let mut retry = RETRY_FIRST;
        loop {
            match fetch(url.clone())
                .await
                .and_then(|json| KeySet::parse(&json))
            {
                Ok(found) => {
                    keys.store(Some(Arc::new(found)));
                    retry = RETRY_FIRST;
                    sleep(FETCH_GAP).await;
                    tokio::select! {
                        () = look.notified() => {}
                        () = sleep(FETCH_EVERY) => {}
                    }
                }
                Err(error) => {
                    tracing::error!(
                        error = error.chain(),
                        "issuer keys not fetched; the previous ones stay in use"
                    );
                    sleep(retry).await;
                    retry = (2 * retry).min(FETCH_GAP);
                }
            }
        }
    }
}

fn no_keys() -> PredictError {
    PredictError::invalid("an issuer's keys must be a JWK Set with at least one usable key")
}
