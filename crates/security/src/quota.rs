//! What the bearers of a key have used, and whether they may use more.
//!
//! Each coordinator counts for itself: a quota holds for each of them. Tokens are known only
//! once they were read and written, so a key may go over its tokens by what runs at that moment;
//! it is refused then until the debt is paid by time.

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

/// When to come back for a place among the running streams.
const STREAM_RETRY: Duration = Duration::from_secs(1);
/// So many keys are counted before those that use nothing are forgotten.
const SWEEP_FROM: usize = 1_024;

/// The use of all keys on one node. Cloning gives another handle.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meters(Arc<Mutex<HashMap<KeyId, Arc<Meter>>>>);

impl Meters {
    /// Begins a prediction of `key`, which may use `quota`.
    ///
    /// # Errors
    /// `Overloaded` when it has used that up, with when to come back.
    pub(crate) fn begin(
        &self,
        key: &KeyId,
        quota: Quota,
        now: Instant,
    ) -> Result<Option<Metered>, PredictError> {
        if quota == Quota::default() {
            return Ok(None);
        }
        let meter = self.of(key, now);
        meter.0.lock().begin(quota, now)?;
        Ok(Some(Metered { meter, quota }))
    }

    fn of(&self, key: &KeyId, now: Instant) -> Arc<Meter> {
        let mut meters = self.0.lock();
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
struct Meter(Mutex<Used>);

/// What one key has used.
#[derive(Debug, Default)]
struct Used {
    requests: Bucket,
    tokens: Bucket,
    streams: u32,
}

impl Used {
    fn begin(&mut self, quota: Quota, now: Instant) -> Result<(), PredictError> {
        if let Some(most) = quota.max_streams
            && most <= self.streams
        {
            return Err(over(most, "predictions at a time", STREAM_RETRY));
        }
        if let Some(limit) = quota.tokens_per_minute
            && let Some(wait) = self.tokens.wait(limit, 0.0, now)
        {
            return Err(over(limit, "tokens a minute", wait));
        }
        if let Some(limit) = quota.requests_per_minute {
            if let Some(wait) = self.requests.wait(limit, 1.0, now) {
                return Err(over(limit, "requests a minute", wait));
            }
            self.requests.take(1.0);
        }
        self.streams += 1;
        Ok(())
    }

    /// Nothing runs, and nothing that was used in the last minute counts.
    fn is_idle(&self, now: Instant) -> bool {
        self.streams == 0 && self.requests.is_old(now) && self.tokens.is_old(now)
    }
}

/// A minute's worth of something, which comes back evenly over a minute. What is taken over it
/// is a debt.
#[derive(Debug, Default)]
struct Bucket {
    /// What was used and has not come back.
    used: f64,
    since: Option<Instant>,
}

impl Bucket {
    /// How long to wait until `amount` may be taken; `None` when that is now.
    fn wait(&mut self, per_minute: u32, amount: f64, now: Instant) -> Option<Duration> {
        let each_second = f64::from(per_minute) / 60.0;
        if let Some(since) = self.since {
            let back = now.saturating_duration_since(since).as_secs_f64() * each_second;
            self.used = (self.used - back).max(0.0);
        }
        self.since = Some(now);
        let missing = self.used + amount - f64::from(per_minute);
        // With nothing to take, there must be something left all the same.
        let is_free = if amount == 0.0 {
            missing < 0.0
        } else {
            missing <= 0.0
        };
        (!is_free).then(|| Duration::from_secs_f64((missing.max(1.0) / each_second).min(86_400.0)))
    }

    fn take(&mut self, amount: f64) {
        self.used += amount;
    }

    fn is_old(&self, now: Instant) -> bool {
        let minute = Duration::from_secs(60);
        self.since
            .is_none_or(|since| minute < now.saturating_duration_since(since))
    }
}

/// One prediction that is counted. Its place among the key's running ones goes when it is
/// dropped.
#[derive(Debug)]
pub(crate) struct Metered {
    meter: Arc<Meter>,
    quota: Quota,
}

impl Metered {
    /// `stream`, with its tokens counted as they pass.
    pub(crate) fn count(self, stream: ChunkStream) -> ChunkStream {
        if self.quota.tokens_per_minute.is_none() {
            return stream.holding(self);
        }
        let mut tally = Tally::default();
        stream.map_batches(move |batches| {
            batches.map(move |item: BatchResult| {
                if let Ok(batch) = &item {
                    let more = tally.add(batch);
                    self.meter.0.lock().tokens.take(f64::from(more));
                }
                item
            })
        })
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        self.meter.0.lock().streams -= 1;
    }
}

/// The tokens of one stream: what its usage says, and until then a token for each row of a
/// generation, so that whoever leaves before the end has paid as well.
#[derive(Debug, Default)]
struct Tally {
    seen: u32,
    told: u32,
    charged: u32,
}

impl Tally {
    /// Counts `batch`; gives what is to be charged for it.
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

/// What the rows of any other task had, where the model counts that.
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
mod tests {
    use futures::stream;
    use volley_types::{GenerationChunk, GenerationChunks, Usage};

    use super::*;

    fn key() -> KeyId {
        KeyId::new("0a1b").unwrap()
    }

    fn generation(rows: u32, usage: Option<Usage>) -> ChunkStream {
        let row = move |n: u32| {
            Ok(GenerationChunks::single(&GenerationChunk {
                text: Some("word".to_owned()),
                usage: usage.filter(|_| n + 1 == rows),
                last: n + 1 == rows,
                ..GenerationChunk::default()
            }))
        };
        let schema = volley_types::Signature::generation().output;
        ChunkStream::new(schema, stream::iter((0..rows).map(row)))
    }

    #[test]
    fn requests_come_back_evenly() {
        let meters = Meters::default();
        let quota = Quota {
            requests_per_minute: Some(60),
            ..Quota::default()
        };
        let start = Instant::now();
        for _ in 0..60 {
            meters.begin(&key(), quota, start).unwrap();
        }
        let refused = meters.begin(&key(), quota, start).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Overloaded);
        assert_eq!(refused.retry_after, Some(Duration::from_secs(1)));
        let later = start + Duration::from_secs(2);
        meters.begin(&key(), quota, later).unwrap();
        meters.begin(&key(), quota, later).unwrap();
        assert!(meters.begin(&key(), quota, later).is_err());
        // Another key has its own.
        let other = KeyId::new("0a1c").unwrap();
        meters.begin(&other, quota, later).unwrap();
    }

    #[test]
    fn a_stream_holds_its_place_until_it_is_dropped() {
        let meters = Meters::default();
        let quota = Quota {
            max_streams: Some(1),
            ..Quota::default()
        };
        let now = Instant::now();
        let running = meters.begin(&key(), quota, now).unwrap().unwrap();
        let stream = running.count(generation(2, None));
        assert!(meters.begin(&key(), quota, now).is_err());
        drop(stream);
        assert!(meters.begin(&key(), quota, now).is_ok());
    }

    #[tokio::test]
    async fn tokens_are_charged_by_usage_and_by_rows_to_those_who_leave() {
        let quota = Quota {
            tokens_per_minute: Some(600),
            ..Quota::default()
        };
        let start = Instant::now();
        let usage = Usage {
            prompt_tokens: 500,
            completion_tokens: 110,
            cached_tokens: 0,
        };
        let meters = Meters::default();
        let whole = meters.begin(&key(), quota, start).unwrap().unwrap();
        assert_eq!(whole.count(generation(3, Some(usage))).count().await, 3);
        let refused = meters.begin(&key(), quota, start).unwrap_err();
        assert_eq!(refused.retry_after, Some(Duration::from_secs(1)));
        let later = start + Duration::from_millis(1_500);
        meters.begin(&key(), quota, later).unwrap();

        let meters = Meters::default();
        let left = meters.begin(&key(), quota, start).unwrap().unwrap();
        let mut left = left.count(generation(1_000, Some(usage)));
        for _ in 0..601 {
            left.next().await.unwrap().unwrap();
        }
        drop(left);
        assert!(meters.begin(&key(), quota, start).is_err());
    }

    #[test]
    fn keys_that_use_nothing_are_forgotten() {
        let meters = Meters::default();
        let quota = Quota {
            requests_per_minute: Some(1),
            ..Quota::default()
        };
        let start = Instant::now();
        let later = start + Duration::from_secs(61);
        for n in 0..2 * SWEEP_FROM {
            let now = if n < SWEEP_FROM { start } else { later };
            let key = KeyId::new(format!("{n:08x}")).unwrap();
            meters.begin(&key, quota, now).unwrap();
        }
        assert!(meters.0.lock().len() <= SWEEP_FROM + 1);
    }

    proptest::proptest! {
        /// However requests come, no minute sees more than two minutes' worth: what was saved up
        /// and what came back.
        #[test]
        fn no_minute_sees_more_than_twice_the_limit(
            limit in 1_u32..50, gaps in proptest::collection::vec(0_u64..5_000, 1..300)
        ) {
            let meters = Meters::default();
            let quota = Quota { requests_per_minute: Some(limit), ..Quota::default() };
            let (mut now, mut taken) = (Instant::now(), Vec::new());
            for gap in gaps {
                now += Duration::from_millis(gap);
                match meters.begin(&key(), quota, now) {
                    Ok(_) => taken.push(now),
                    Err(error) => {
                        // Whoever comes back when told gets in.
                        let then = now + error.retry_after.unwrap() + Duration::from_millis(1);
                        proptest::prop_assert!(then - now <= Duration::from_secs(61));
                    }
                }
            }
            for (n, first) in taken.iter().enumerate() {
                let minute = taken[n..].iter().take_while(|at| **at - *first < Duration::from_secs(60));
                proptest::prop_assert!(minute.count() <= 2 * limit as usize);
            }
        }
    }
}
