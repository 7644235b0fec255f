//! The limits of one key on several coordinators.

use proptest::prelude::*;
use volley_types::Quota;

use super::*;

struct Node {
    usage: Usage,
    node: NodeId,
    told: HashMap<KeyId, KeyUse>,
}

fn key() -> KeyId {
    KeyId::new("5f0c").unwrap()
}

fn nodes(count: u64) -> Vec<Node> {
    let node = |id| Node {
        usage: Usage(QuotaTracker::default()),
        node: NodeId(id),
        told: HashMap::new(),
    };
    let mut nodes: Vec<_> = (1..=count).map(node).collect();
    let now = Instant::now();
    for from in 0..nodes.len() {
        tell(&mut nodes, from, true, now);
    }
    nodes
}

/// Sends the new usage of one node to the others.
fn tell(nodes: &mut [Node], from: usize, first: bool, now: Instant) {
    let sender = &mut nodes[from];
    let keys = sender.usage.news(&mut sender.told, MAX_REPORTED);
    nodes[from].told.extend(keys.iter().cloned());
    let report = Report {
        node: nodes[from].node,
        session: 7,
        first,
        keys,
    };
    for (to, node) in nodes.iter().enumerate() {
        // A repeated report counts once.
        for _ in 0..2 {
            assert!(to == from || node.usage.hear(report.clone(), now));
        }
    }
}

fn per_minute(limit: u32) -> Quota {
    Quota {
        requests_per_minute: Some(limit),
        ..Quota::default()
    }
}

#[test]
fn what_is_used_at_one_is_used_at_all() {
    let mut nodes = nodes(3);
    let now = Instant::now();
    let quota = per_minute(10);
    for _ in 0..8 {
        nodes[0].usage.0.begin(&key(), quota, now).unwrap();
    }
    tell(&mut nodes, 0, false, now);
    let allowed = (0..10).filter(|_| nodes[1].usage.0.begin(&key(), quota, now).is_ok());
    assert_eq!(allowed.count(), 2);
    tell(&mut nodes, 1, false, now);
    assert!(nodes[2].usage.0.begin(&key(), quota, now).is_err());
    assert!(nodes[0].usage.0.begin(&key(), quota, now).is_err());
    // One request is refilled in six seconds; the first caller gets it.
    let later = now + Duration::from_millis(6_100);
    nodes[2].usage.0.begin(&key(), quota, later).unwrap();
    tell(&mut nodes, 2, false, later);
    assert!(nodes[0].usage.0.begin(&key(), quota, later).is_err());
}

#[test]
fn streams_elsewhere_hold_their_places_until_they_end_or_their_coordinator_does() {
    let mut nodes = nodes(2);
    let quota = Quota {
        max_streams: Some(1),
        ..Quota::default()
    };
    let now = Instant::now();
    let running = nodes[0].usage.0.begin(&key(), quota, now).unwrap();
    tell(&mut nodes, 0, false, now);
    assert!(nodes[1].usage.0.begin(&key(), quota, now).is_err());
    drop(running);
    tell(&mut nodes, 0, false, now);
    drop(nodes[1].usage.0.begin(&key(), quota, now).unwrap());

    let lost = nodes[0].usage.0.begin(&key(), quota, now).unwrap();
    tell(&mut nodes, 0, false, now);
    assert!(nodes[1].usage.0.begin(&key(), quota, now).is_err());
    let silent = now + SILENCE + Duration::from_millis(1);
    assert!(nodes[1].usage.0.begin(&key(), quota, silent).is_ok());
    drop(lost);
}

#[test]
fn one_that_is_alone_allows_a_share() {
    let nodes = nodes(1);
    let quota = per_minute(10);
    let now = Instant::now();
    nodes[0].usage.set_alone(true, 3);
    let allowed = (0..10).filter(|_| nodes[0].usage.0.begin(&key(), quota, now).is_ok());
    assert_eq!(allowed.count(), 4);
    nodes[0].usage.set_alone(false, 3);
    let allowed = (0..10).filter(|_| nodes[0].usage.0.begin(&key(), quota, now).is_ok());
    assert_eq!(allowed.count(), 6);
}

#[test]
fn a_session_that_is_not_known_begins_with_its_counts_and_charges_nothing() {
    let (usage, now) = (Usage(QuotaTracker::default()), Instant::now());
    let report = |first, requests| Report {
        node: NodeId(2),
        session: 9,
        first,
        keys: vec![(
            key(),
            KeyUse {
                requests,
                requests_per_minute: 3,
                ..KeyUse::default()
            },
        )],
    };
    assert!(!usage.hear(report(false, 1_000), now));
    assert!(usage.hear(report(true, 1_000), now));
    let quota = per_minute(3);
    usage.0.begin(&key(), quota, now).unwrap();
    assert!(usage.hear(report(false, 1_002), now));
    assert!(usage.0.begin(&key(), quota, now).is_err());
    usage.keep_only(&[NodeId(1)]);
    assert!(!usage.hear(report(false, 1_003), now));
}

proptest! {
    /// However callers spread over coordinators that report every `interval`, the requests started
    /// in a period are at most the limit of one minute, the refill of that period, and the requests
    /// that other coordinators could admit within one interval.
    #[test]
    fn all_together_keep_to_the_limit(
        limit in 5_u32..40,
        calls in proptest::collection::vec((0_usize..3, 0_u64..200), 1..400),
    ) {
        let mut nodes = nodes(3);
        let quota = per_minute(limit);
        let start = Instant::now();
        let (mut now, mut next) = (start, start);
        let (mut allowed, mut in_interval, mut most) = (0_u64, [0_u64; 3], 0);
        for (node, gap_ms) in calls {
            now += Duration::from_millis(gap_ms);
            while next <= now {
                for from in 0..3 {
                    tell(&mut nodes, from, false, next);
                }
                most = most.max(in_interval.iter().sum());
                in_interval = [0; 3];
                next += Duration::from_millis(100);
            }
            if nodes[node].usage.0.begin(&key(), quota, now).is_ok() {
                allowed += 1;
                in_interval[node] += 1;
            }
        }
        most = most.max(in_interval.iter().sum());
        let back = (now - start).as_secs_f64() * f64::from(limit) / 60.0;
        let bound = f64::from(limit) + back + most as f64 + 1.0;
        prop_assert!(allowed as f64 <= bound, "{} over {}", allowed, bound);
    }
}

#[test]
fn a_coordinator_alone_refills_a_running_stream_with_its_share() {
    let usage = Usage(QuotaTracker::default());
    usage.set_alone(true, 3);
    let quota = Quota {
        tokens_per_minute: Some(600),
        ..Quota::default()
    };
    let start = Instant::now();
    let running = usage.0.begin(&key(), quota, start).unwrap().unwrap();
    running.take_tokens(600, 200, start);
    // The share is 200 a minute, so 6 seconds refill 20 tokens, not 60.
    running.take_tokens(600, 60, start + Duration::from_secs(6));
    let later = start + Duration::from_secs(12);
    assert!(usage.0.begin(&key(), quota, later).is_err());
    // The whole limit applies as soon as the coordinator hears of others again.
    usage.set_alone(false, 3);
    running.take_tokens(600, 1, later);
    assert!(usage.0.begin(&key(), quota, later).is_ok());
}
