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
    let meters = QuotaTracker::default();
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
    // Another key has its own quota.
    let other = KeyId::new("0a1c").unwrap();
    meters.begin(&other, quota, later).unwrap();
}

#[test]
fn a_stream_holds_its_place_until_it_is_dropped() {
    let meters = QuotaTracker::default();
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
        ..Usage::default()
    };
    let meters = QuotaTracker::default();
    let whole = meters.begin(&key(), quota, start).unwrap().unwrap();
    assert_eq!(whole.count(generation(3, Some(usage))).count().await, 3);
    let refused = meters.begin(&key(), quota, start).unwrap_err();
    // Part of the quota has been refilled during the read.
    let wait = refused.retry_after.unwrap();
    assert!(wait <= Duration::from_secs(1), "{wait:?}");
    let later = start + Duration::from_millis(1_500);
    meters.begin(&key(), quota, later).unwrap();

    let meters = QuotaTracker::default();
    let left = meters.begin(&key(), quota, start).unwrap().unwrap();
    let mut left = left.count(generation(1_000, Some(usage)));
    for _ in 0..900 {
        left.next().await.unwrap().unwrap();
    }
    drop(left);
    assert!(meters.begin(&key(), quota, start).is_err());
}

#[test]
fn keys_that_use_nothing_are_forgotten() {
    let meters = QuotaTracker::default();
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
    assert!(meters.0.keys.lock().len() <= SWEEP_FROM + 1);
}

#[test]
fn a_debt_of_over_a_minute_is_not_forgotten() {
    let meters = QuotaTracker::default();
    let quota = Quota {
        tokens_per_minute: Some(60),
        ..Quota::default()
    };
    let start = Instant::now();
    let running = meters.begin(&key(), quota, start).unwrap().unwrap();
    running.take_tokens(60, 300, start);
    drop(running);
    let fill = |now| {
        for n in 0..=SWEEP_FROM {
            let key = KeyId::new(format!("{n:08x}")).unwrap();
            meters.begin(&key, quota, now).unwrap();
        }
    };
    let later = start + Duration::from_secs(61);
    fill(later);
    assert!(meters.begin(&key(), quota, later).is_err());
    // The debt is refilled after five minutes of quiet.
    let free = later + Duration::from_secs(301);
    meters.of(&KeyId::new("0a1d").unwrap(), free);
    assert!(!meters.0.keys.lock().contains_key(&key()));
}

proptest::proptest! {
    /// However requests arrive, no minute admits more than twice the limit: the saved quota and the
    /// refill.
    #[test]
    fn no_minute_sees_more_than_twice_the_limit(
        limit in 1_u32..50, gaps in proptest::collection::vec(0_u64..5_000, 1..300)
    ) {
        let meters = QuotaTracker::default();
        let quota = Quota { requests_per_minute: Some(limit), ..Quota::default() };
        let (mut now, mut taken) = (Instant::now(), Vec::new());
        for gap in gaps {
            now += Duration::from_millis(gap);
            match meters.begin(&key(), quota, now) {
                Ok(_) => taken.push(now),
                Err(error) => {
                    // A caller that waits for the retry delay is admitted.
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
