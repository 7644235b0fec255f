use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::score::{Score, is_outlier};
use super::*;

fn ids(count: usize) -> Vec<WorkerId> {
    (0..count)
        .map(|index| WorkerId::new(format!("w{index}")).unwrap())
        .collect()
}

fn view(worker: &WorkerId) -> View<'_> {
    View {
        worker,
        suspect: false,
        ejected: false,
        resident: true,
        local: false,
        load: 0,
        capacity: 10,
        latency_ms: Some(10.0),
        failing: 0.0,
        warmth: 1.0,
    }
}

/// Which replicas are chosen over 200 seeds, and why.
fn chosen(views: &[View<'_>], hints: RoutingHints) -> (Vec<usize>, Reason) {
    let mut all: Vec<_> = (0..200)
        .map(|seed| decide(views, &hints, &mut fastrand::Rng::with_seed(seed)).unwrap())
        .collect();
    let reason = all[0].1;
    assert!(all.iter().all(|(_, other)| *other == reason));
    all.sort_by_key(|(index, _)| *index);
    all.dedup();
    (all.into_iter().map(|(index, _)| index).collect(), reason)
}

#[test]
fn what_is_chosen_and_why() {
    type Change = fn(&mut [View<'_>]);
    let table: [(&str, Change, RoutingHints, &[usize], Reason); 11] = [
        (
            "equals share",
            |_| {},
            RoutingHints::default(),
            &[0, 1, 2],
            Reason::Balanced,
        ),
        (
            "the most expensive of three never wins",
            |v| v[1].load = 5,
            RoutingHints::default(),
            &[0, 2],
            Reason::Balanced,
        ),
        (
            "a slow one too",
            |v| v[0].latency_ms = Some(100.0),
            RoutingHints::default(),
            &[1, 2],
            Reason::Balanced,
        ),
        (
            "a failing one too",
            |v| v[0].failing = 0.3,
            RoutingHints::default(),
            &[1, 2],
            Reason::Balanced,
        ),
        (
            "late ones are last",
            |v| (v[0].suspect, v[1].suspect) = (true, true),
            RoutingHints::default(),
            &[2],
            Reason::Only,
        ),
        (
            "ejected ones too",
            |v| (v[0].ejected, v[2].ejected) = (true, true),
            RoutingHints::default(),
            &[1],
            Reason::Only,
        ),
        (
            "unless all are",
            |v| v.iter_mut().for_each(|v| v.ejected = true),
            RoutingHints::default(),
            &[0, 1, 2],
            Reason::Balanced,
        ),
        (
            "what is in memory goes first",
            |v| v[0].resident = false,
            RoutingHints::default(),
            &[1, 2],
            Reason::Balanced,
        ),
        (
            "until it is full",
            |v| {
                v.iter_mut()
                    .for_each(|v| (v.resident, v.load) = (v.worker.as_str() == "w0", 10))
            },
            RoutingHints::default(),
            &[0, 1, 2],
            Reason::Balanced,
        ),
        (
            "the own zone goes first",
            |v| v[2].local = true,
            RoutingHints::default(),
            &[2],
            Reason::Zone,
        ),
        (
            "until it is loaded",
            |v| (v[2].local, v[2].load) = (true, 8),
            RoutingHints::default(),
            &[0, 1],
            Reason::Spill,
        ),
    ];
    let ids = ids(3);
    for (what, change, hints, expected, reason) in table {
        let mut views: Vec<_> = ids.iter().map(view).collect();
        change(&mut views);
        assert_eq!(chosen(&views, hints), (expected.to_vec(), reason), "{what}");
    }
    assert!(decide(&[], &RoutingHints::default(), &mut fastrand::Rng::new()).is_none());
}

#[test]
fn a_session_stays_until_its_replica_is_full_and_a_prefix_until_it_has_more_than_its_share() {
    let ids = ids(5);
    let mut views: Vec<_> = ids.iter().map(view).collect();
    let session = RoutingHints {
        session: Some(7),
        ..RoutingHints::default()
    };
    let (home, reason) = chosen(&views, session);
    assert_eq!((home.len(), reason), (1, Reason::Session));
    views[home[0]].load = 9;
    assert_eq!(chosen(&views, session).0, home);
    views[home[0]].load = 10;
    let (next, _) = chosen(&views, session);
    assert!(next.len() == 1 && next != home);

    views[home[0]].load = 0;
    let prefix = RoutingHints {
        prefix: Some(7),
        ..RoutingHints::default()
    };
    assert_eq!(chosen(&views, prefix), (home.clone(), Reason::Prefix));
    views[home[0]].load = 3;
    assert_eq!(chosen(&views, prefix).0, next, "the others are idle");
    views.iter_mut().for_each(|view| view.load = 3);
    assert_eq!(chosen(&views, prefix).0, home, "all are alike");
}

#[test]
fn a_session_that_a_model_holds_goes_nowhere_else() {
    let ids = ids(5);
    let mut views: Vec<_> = ids.iter().map(view).collect();
    let hints = RoutingHints {
        session: Some(7),
        held: true,
        ..RoutingHints::default()
    };
    let (home, reason) = chosen(&views, hints);
    assert_eq!((home.len(), reason), (1, Reason::Session));
    let own = &mut views[home[0]];
    (own.load, own.suspect, own.ejected) = (10, true, true);
    // Another coordinator is in another zone.
    let other = (home[0] + 1) % 5;
    views[other].local = true;
    assert_eq!(chosen(&views, hints).0, home);
}

proptest! {
    #[test]
    fn keys_are_spread_bounded_and_move_little_when_a_replica_goes(
        keys in proptest::collection::vec(any::<u64>(), 400),
        gone in 0_usize..8,
    ) {
        let ids = ids(8);
        let views: Vec<_> = ids.iter().map(view).collect();
        let all: Vec<usize> = (0..8).collect();
        let left: Vec<usize> = all.iter().copied().filter(|index| *index != gone).collect();
        for key in &keys {
            let (before, after) = (affinity::ranked(&views, &all, *key)[0], affinity::ranked(&views, &left, *key)[0]);
            prop_assert!(before == after || before == gone);
        }
        // All of one key, as many streams as there is room for: never beyond the bound.
        let mut views = views;
        for count in 1..=80_u32 {
            let hints = RoutingHints { prefix: Some(keys[0]), ..RoutingHints::default() };
            let (index, _) = decide(&views, &hints, &mut fastrand::Rng::with_seed(1)).unwrap();
            views[index].load += 1;
            let bound = (f64::from(count) * 1.25 / 8.0).ceil().max(2.5);
            prop_assert!(f64::from(views[index].load) <= bound, "{} of {count}", views[index].load);
        }
    }

    #[test]
    fn a_choice_is_always_a_replica_and_the_best_group_wins(
        flags in proptest::collection::vec(any::<(bool, bool, bool, bool)>(), 1..8),
        loads in proptest::collection::vec(0_u32..20, 8),
        session in any::<Option<u64>>(),
        prefix in any::<Option<u64>>(),
        seed in any::<u64>(),
    ) {
        let ids = ids(flags.len());
        let views: Vec<_> = flags.iter().enumerate().map(|(index, (suspect, ejected, resident, local))| View {
            suspect: *suspect,
            ejected: *ejected,
            resident: *resident,
            local: *local,
            load: loads[index],
            ..view(&ids[index])
        }).collect();
        let hints = RoutingHints { session, prefix, held: false };
        let (index, _) = decide(&views, &hints, &mut fastrand::Rng::with_seed(seed)).unwrap();
        prop_assert!(!views[index].suspect || views.iter().all(|view| view.suspect));
        let trusted = |view: &&View<'_>| view.suspect == views[index].suspect;
        prop_assert!(!views[index].ejected || views.iter().filter(trusted).all(|view| view.ejected));
    }
}

/// Replicas with latencies of their own under closed load: each of `clients` asks again as soon
/// as it is answered. Gives how many requests each replica served.
struct ClosedLoop {
    start: Instant,
    now_ms: u64,
    scores: Vec<Score>,
    loads: Vec<u32>,
    served: Vec<u32>,
}

impl ClosedLoop {
    fn new(replicas: usize) -> Self {
        let start = Instant::now();
        Self {
            start,
            now_ms: 0,
            scores: vec![Score::new(start); replicas],
            loads: vec![0; replicas],
            served: vec![0; replicas],
        }
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_millis(self.now_ms)
    }

    /// Runs until `until_ms`; `fate` says how long a call to a replica takes, or that it fails.
    fn run(
        &mut self,
        clients: usize,
        until_ms: u64,
        seed: u64,
        fate: impl Fn(usize, u64) -> Option<u64>,
    ) {
        let ids = ids(self.scores.len());
        let mut random = fastrand::Rng::with_seed(seed);
        // (when, replica, latency) of what runs; `usize::MAX` is a client that thinks.
        let mut running: Vec<(u64, usize, u64)> = vec![(self.now_ms, usize::MAX, 0); clients];
        loop {
            let next = (0..running.len())
                .min_by_key(|index| running[*index].0)
                .unwrap();
            let (at, replica, latency) = running[next];
            if until_ms < at {
                break;
            }
            self.now_ms = at;
            let now = self.now();
            if replica != usize::MAX {
                self.loads[replica] -= 1;
                if latency == 0 {
                    self.scores[replica].failed();
                    let usable =
                        |index: &usize| *index != replica && !self.scores[*index].is_ejected(now);
                    let others: Vec<f64> = (0..ids.len())
                        .filter(usable)
                        .map(|index| self.scores[index].failing())
                        .collect();
                    let ejected = ids.len() - 1 - others.len();
                    let score = &mut self.scores[replica];
                    if !score.is_ejected(now)
                        && is_outlier(score.failing(), &others, ejected, ids.len())
                    {
                        score.eject(now);
                    }
                } else {
                    self.scores[replica].succeeded(now, Duration::from_millis(latency));
                    self.served[replica] += 1;
                }
            }
            let views: Vec<_> = ids
                .iter()
                .enumerate()
                .map(|(index, id)| View {
                    ejected: self.scores[index].is_ejected(now),
                    load: self.loads[index],
                    latency_ms: self.scores[index].latency_ms(now),
                    failing: self.scores[index].failing(),
                    warmth: self.scores[index].warmth(now, Duration::from_secs(10)),
                    ..view(id)
                })
                .collect();
            let (chosen, _) = decide(&views, &RoutingHints::default(), &mut random).unwrap();
            self.loads[chosen] += 1;
            let fate = fate(chosen, at);
            running[next] = (at + fate.unwrap_or(1), chosen, fate.unwrap_or(0));
        }
    }

    fn share(&self, replica: usize) -> f64 {
        f64::from(self.served[replica]) / f64::from(self.served.iter().sum::<u32>())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn a_slow_replica_gets_a_small_share_and_is_not_forgotten(seed in any::<u64>()) {
        let mut bed = ClosedLoop::new(4);
        let slow = |replica: usize, _: u64| Some(if replica == 0 { 100 } else { 10 });
        // With room elsewhere it is only probed now and then.
        bed.run(8, 20_000, seed, slow);
        prop_assert!(bed.share(0) < 0.03, "{:?}", bed.served);
        prop_assert!(3 <= bed.served[0], "{:?}", bed.served);
        // Where the others queue it takes what it can.
        bed.served = vec![0; 4];
        bed.run(64, 30_000, seed ^ 2, slow);
        prop_assert!((0.005..0.08).contains(&bed.share(0)), "{:?}", bed.served);
        for replica in 1..4 {
            prop_assert!((0.2..0.45).contains(&bed.share(replica)), "{:?}", bed.served);
        }
        // Well again: it gets its part back.
        let before = bed.served[0];
        bed.served = vec![0; 4];
        bed.run(8, 70_000, seed ^ 1, |_, _| Some(10));
        prop_assert!(0.15 < bed.share(0), "{before}, {:?}", bed.served);
    }

    #[test]
    fn a_failing_replica_is_ejected_and_comes_back_when_it_is_well(seed in any::<u64>()) {
        let mut bed = ClosedLoop::new(3);
        let sick = |replica: usize, at: u64| (replica != 1 || 20_000 < at).then_some(10);
        bed.run(6, 20_000, seed, sick);
        prop_assert_eq!(bed.served[1], 0);
        prop_assert!(bed.scores[1].is_ejected(bed.now()) || 0.3 < bed.scores[1].failing());
        bed.served = vec![0; 3];
        bed.run(6, 150_000, seed ^ 1, sick);
        prop_assert!(0.2 < bed.share(1), "{:?}", bed.served);
    }

    #[test]
    fn never_more_than_half_are_ejected_and_none_when_all_fail_alike(
        seed in any::<u64>(),
        replicas in 1_usize..7,
        sick in 0_usize..7,
    ) {
        let mut bed = ClosedLoop::new(replicas);
        bed.run(6, 8_000, seed, |replica, _| (sick <= replica).then_some(10));
        let ejected = bed.scores.iter().filter(|score| score.is_ejected(bed.now())).count();
        prop_assert!(ejected * 2 <= replicas, "{ejected} of {replicas}");
        prop_assert!(replicas != 1 || ejected == 0);
        prop_assert!(sick < replicas || replicas < 2 || ejected * 2 <= replicas);
    }

    #[test]
    fn a_new_replica_warms_up_and_then_has_its_share(seed in any::<u64>()) {
        let mut bed = ClosedLoop::new(4);
        let well = |_: usize, _: u64| Some(10);
        bed.run(16, 30_000, seed, well);
        let now = bed.now();
        bed.scores[3] = Score::new(now);
        bed.served = vec![0; 4];
        bed.run(16, 31_000, seed ^ 1, well);
        let cold = bed.share(3);
        bed.served = vec![0; 4];
        bed.run(16, 60_000, seed ^ 2, well);
        prop_assert!(cold < 0.2 && 0.2 < bed.share(3), "{cold}, then {}", bed.share(3));
    }
}

#[test]
fn prompts_that_begin_alike_have_one_hash_and_short_ones_none() {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, RecordBatch, StringArray};
    use volley_types::chat::conversations;
    use volley_types::signature::{MESSAGES, PROMPT};
    use volley_types::{ChatMessage, Input};

    let hash = |column: &str, array: ArrayRef| {
        let batch = RecordBatch::try_from_iter([(column, array)]).unwrap();
        affinity::prefix(&Input::Batch(batch))
    };
    let prompt = |text: &str| hash(PROMPT, Arc::new(StringArray::from(vec![text])));
    let long = "system ".repeat(200);
    assert_eq!(prompt("short"), None);
    assert!(prompt(&long).is_some());
    assert_eq!(prompt(&long), prompt(&format!("{long} and more")));
    assert_ne!(prompt(&long), prompt(&format!("x{long}")));
    let chat = |last: &str| {
        let messages = [
            ChatMessage::new("system", &*long),
            ChatMessage::new("user", last),
        ];
        hash(MESSAGES, conversations([Some(messages.as_slice())]))
    };
    assert!(chat("a").is_some());
    assert_eq!(chat("a"), chat("b"));
    let two = hash(PROMPT, Arc::new(StringArray::from(vec![&*long, &*long])));
    assert_eq!(two, None);
}
