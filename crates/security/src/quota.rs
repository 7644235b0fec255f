//! Quotas of keys.
//!
//! Coordinators exchange their usage (see [`shared`]), so a quota applies to all of them together.
//! Tokens are only known after they were processed, so a key may exceed its token quota by its
//! running requests and by requests on other coordinators that are not reported yet. Then its
//! requests are rejected until the excess has been refilled.

pub mod shared;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::UInt32Type;
use futures::StreamExt;
use parking_lot::Mutex;
use volley_types::chunk::{BatchResult, GenerationRow};
use volley_types::signature::TOKENS;
use volley_types::{ChunkStream, ErrorCode, KeyId, PredictError, Quota};

use self::shared::{KeyUse, PeerUsage};

/// Retry delay when the limit of concurrent streams is reached.
const STREAM_RETRY: Duration = Duration::from_secs(1);
/// Number of keys from which unused keys are removed.
const SWEEP_FROM: usize = 1_024;

/// Usage of all keys on one node. Clones share their state.
#[derive(Clone, Debug, Default)]
pub(crate) struct QuotaTracker(Arc<KeyMeters>);

#[derive(Debug, Default)]
struct KeyMeters {
    keys: Mutex<HashMap<KeyId, Arc<Meter>>>,
    others: PeerUsage,
}

impl QuotaTracker {
    /// Starts a prediction of `key`, limited by `quota`.
    ///
    /// # Errors
    /// `Overloaded` with a retry delay when the quota is exhausted.
    pub(crate) fn begin(
        &self,
        key: &KeyId,
        quota: Quota,
        now: Instant,
    ) -> Result<Option<MeteredPrediction>, PredictError> {
        if quota == Quota::default() {
            return Ok(None);
        }
        let others = &self.0.others;
        let elsewhere = quota.max_streams.map(|_| others.streams(key, now));
        let share = |limit: Option<u32>| limit.map(|limit| others.share(limit));
        let here = Quota {
            requests_per_minute: share(quota.requests_per_minute),
            tokens_per_minute: share(quota.tokens_per_minute),
            max_streams: share(quota.max_streams),
        };
        let meter = self.of(key, now);
        meter.0.lock().begin(here, elsewhere.unwrap_or(0), now)?;
        let meters = self.0.clone();
        Ok(Some(MeteredPrediction {
            meters,
            meter,
            quota,
        }))
    }

    /// Charges usage of other coordinators to a key.
    fn charge(&self, key: &KeyId, more: KeyUse, now: Instant) {
        let meter = self.of(key, now);
        let mut used = meter.0.lock();
        let rated = |limit: u32| (limit != 0).then_some(limit);
        if let Some(limit) = rated(more.requests_per_minute) {
            used.requests.charge(limit, more.requests as f64, now);
        }
        if let Some(limit) = rated(more.tokens_per_minute) {
            used.tokens.charge(limit, more.tokens as f64, now);
        }
    }

    fn others(&self) -> &PeerUsage {
        &self.0.others
    }

    /// Usage of each key on this node.
    fn own_use(&self) -> HashMap<KeyId, KeyUse> {
        let keys = self.0.keys.lock();
        let own = |(key, meter): (&KeyId, &Arc<Meter>)| (key.clone(), meter.0.lock().own());
        keys.iter().map(own).collect()
    }

    fn of(&self, key: &KeyId, now: Instant) -> Arc<Meter> {
        let mut meters = self.0.keys.lock();
        if let Some(meter) = meters.get(key) {
            return meter.clone();
        }
        if SWEEP_FROM <= meters.len() {
            meters.retain(|_, meter| 1 < Arc::strong_count(meter) || !meter.0.lock().is_idle(now));
        }
        meters.entry(key.clone()).or_default().clone()
    }
}

#[derive(Debug, Default)]
struct Meter(Mutex<KeyUsage>);

/// Usage of one key.
#[derive(Debug, Default)]
struct KeyUsage {
    requests: Bucket,
    tokens: Bucket,
    streams: u32,
    /// Total usage on this node, for limited keys.
    began: u64,
    charged: u64,
}

impl KeyUsage {
    /// Starts a prediction. `elsewhere` is the number of predictions that run on other
    /// coordinators.
    fn begin(&mut self, quota: Quota, elsewhere: u32, now: Instant) -> Result<(), PredictError> {
        if let Some(most) = quota.max_streams
            && most <= self.streams.saturating_add(elsewhere)
        {
            return Err(over(most, "predictions at a time", STREAM_RETRY));
        }
        if let Some(limit) = quota.tokens_per_minute
            && let Some(wait) = self.tokens.wait(limit, 0.0, now)
        {
            return Err(over(limit, "tokens a minute", wait));
        }
        // Requests are checked and charged last, so that a rejected prediction consumes nothing.
        if let Some(limit) = quota.requests_per_minute {
            if let Some(wait) = self.requests.wait(limit, 1.0, now) {
                return Err(over(limit, "requests a minute", wait));
            }
            self.requests.charge(limit, 1.0, now);
            self.began += 1;
        }
        self.streams += 1;
        Ok(())
    }

    fn take_tokens(&mut self, limit: u32, tokens: u32, now: Instant) {
        self.tokens.charge(limit, f64::from(tokens), now);
        self.charged += u64::from(tokens);
    }

    fn own(&self) -> KeyUse {
        KeyUse {
            requests: self.began,
            tokens: self.charged,
            streams: self.streams,
            requests_per_minute: self.requests.per_minute,
            tokens_per_minute: self.tokens.per_minute,
        }
    }

    /// Whether nothing runs, no usage of the last minute remains, and all usage is refilled.
    fn is_idle(&self, now: Instant) -> bool {
        self.streams == 0 && self.requests.is_old(now) && self.tokens.is_old(now)
    }
}

/// A token bucket for one minute that refills evenly. It may become negative.
#[derive(Debug, Default)]
struct Bucket {
    /// Usage that has not been refilled.
    used: f64,
    since: Option<Instant>,
    /// The limit at the last call; 0 before the first one.
    per_minute: u32,
}

impl Bucket {
    /// The time until `amount` is available; `None` if it is available now.
    fn wait(&mut self, per_minute: u32, amount: f64, now: Instant) -> Option<Duration> {
        self.settle(per_minute, now);
        let each_second = f64::from(per_minute) / 60.0;
        let missing = self.used + amount - f64::from(per_minute);
        // A request of 0 also needs a positive balance.
        let is_free = if amount == 0.0 {
            missing < 0.0
        } else {
            missing <= 0.0
        };
        (!is_free).then(|| Duration::from_secs_f64((missing.max(1.0) / each_second).min(86_400.0)))
    }

    fn charge(&mut self, per_minute: u32, amount: f64, now: Instant) {
        self.settle(per_minute, now);
        self.used += amount;
    }

    /// Refills the bucket for the time since the last call.
    fn settle(&mut self, per_minute: u32, now: Instant) {
        if let Some(since) = self.since {
            let each_second = f64::from(per_minute) / 60.0;
            let back = now.saturating_duration_since(since).as_secs_f64() * each_second;
            self.used = (self.used - back).max(0.0);
        }
        self.since = Some(now);
        self.per_minute = per_minute;
    }

    /// Whether the last call is over a minute ago and its usage is refilled. A bucket that was over
    /// its limit takes longer than a minute.
    fn is_old(&self, now: Instant) -> bool {
        self.since.is_none_or(|since| {
            let gone = now.saturating_duration_since(since);
            let back = gone.as_secs_f64() * f64::from(self.per_minute) / 60.0;
            Duration::from_secs(60) < gone && self.used <= back
        })
    }
}

/// A counted prediction. Its permit of the key's concurrent streams is released when it is dropped.
#[derive(Debug)]
pub(crate) struct MeteredPrediction {
    meters: Arc<KeyMeters>,
    meter: Arc<Meter>,
    quota: Quota,
}

impl MeteredPrediction {
    /// Counts the tokens of `stream` while its batches pass.
    pub(crate) fn count(self, stream: ChunkStream) -> ChunkStream {
        let Some(limit) = self.quota.tokens_per_minute else {
            return stream.holding(self);
        };
        let mut tally = Tally::default();
        stream.map_batches(move |batches| {
            batches.map(move |item: BatchResult| {
                if let Ok(batch) = &item {
                    self.take_tokens(limit, tally.add(batch), Instant::now());
                }
                item
            })
        })
    }

    /// Charges tokens. While this coordinator is alone, its bucket refills with its share of
    /// `limit`, also during a stream.
    fn take_tokens(&self, limit: u32, tokens: u32, now: Instant) {
        let here = self.meters.others.share(limit);
        self.meter.0.lock().take_tokens(here, tokens, now);
    }
}

impl Drop for MeteredPrediction {
    fn drop(&mut self) {
        self.meter.0.lock().streams -= 1;
    }
}

/// Token count of one stream: the reported usage, and until it is reported, one token for each row
/// of a generation, so that aborted streams are also charged.
#[derive(Debug, Default)]
struct Tally {
    seen: u32,
    told: u32,
    charged: u32,
}

impl Tally {
    /// Counts `batch`; returns the tokens to charge.
    fn add(&mut self, batch: &RecordBatch) -> u32 {
        match GenerationRow::rows(batch) {
            Ok(rows) => {
                for row in rows {
                    self.seen = self.seen.saturating_add(u32::from(row.has_content()));
                    if let Some(usage) = row.usage() {
                        let all = usage.prompt_tokens.saturating_add(usage.completion_tokens);
                        self.told = self.told.saturating_add(all);
                    }
                }
            }
            Err(_) => self.told = self.told.saturating_add(row_tokens(batch)),
        }
        let owed = self.seen.max(self.told);
        let more = owed.saturating_sub(self.charged);
        self.charged += more;
        more
    }
}

/// Tokens of the rows of other tasks, if the model counts them.
fn row_tokens(batch: &RecordBatch) -> u32 {
    let column = batch.column_by_name(TOKENS);
    let column = column.and_then(|column| column.as_primitive_opt::<UInt32Type>());
    column.map_or(0, |column| {
        column.iter().flatten().fold(0, u32::saturating_add)
    })
}

fn over(limit: u32, what: &str, wait: Duration) -> PredictError {
    let message = format!("the key's quota of {limit} {what} is used up");
    PredictError::new(ErrorCode::Overloaded, message).with_retry_after(wait)
}

#[cfg(test)]
mod tests;
