use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn alias(targets: &[(&str, u32)]) -> AliasSpec {
    let target = |(model, weight): &(&str, u32)| AliasTarget {
        model: model.parse().unwrap(),
        weight: *weight,
    };
    AliasSpec {
        name: "chat".parse().unwrap(),
        targets: targets.iter().map(target).collect(),
        mirror: None,
        sticky_header: None,
        description: String::new(),
    }
}

fn keys(count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(|index| hash(format!("request-{index}").as_bytes()))
}

#[test]
fn the_split_is_as_the_weights_say() {
    let spec = alias(&[("a", 90), ("b:2", 9), ("c", 1), ("d", 0)]);
    let mut counts = BTreeMap::new();
    for key in keys(100_000) {
        let chosen = spec.choose(key).unwrap().to_string();
        *counts.entry(chosen).or_insert(0_i32) += 1;
    }
    // Four standard deviations of the binomial distribution.
    for (model, wanted, slack) in [("a", 90_000, 380), ("b:2", 9_000, 362), ("c", 1_000, 126)] {
        let got = counts[model];
        assert!((got - wanted).abs() < slack, "{model}: {got}");
    }
    assert!(!counts.contains_key("d"));
}

#[test]
fn a_mirror_gets_its_share_whichever_target_answers() {
    let mut spec = alias(&[("a", 1), ("b", 1)]);
    spec.mirror = Some(AliasMirror {
        model: "m".parse().unwrap(),
        permille: 250,
    });
    let mut both = BTreeMap::new();
    for key in keys(40_000) {
        let chosen = spec.choose(key).unwrap().to_string();
        let mirrored = spec.mirrored(key).is_some();
        *both.entry((chosen, mirrored)).or_insert(0_i32) += 1;
    }
    for model in ["a", "b"] {
        let got = both[&(model.to_owned(), true)];
        assert!((got - 5_000).abs() < 300, "{model}: {got}");
    }
    spec.mirror.as_mut().unwrap().permille = 1_000;
    assert!(keys(1_000).all(|key| spec.mirrored(key).is_some()));
}

#[test]
fn choices_do_not_change_between_releases() {
    assert_eq!(hash(b""), 0xefd0_1f60_ba99_2926);
    let spec = alias(&[("a", 1), ("b", 1)]);
    let chosen: String = keys(24)
        .map(|key| spec.choose(key).unwrap().to_string())
        .collect();
    assert_eq!(chosen, CHOSEN);
}

const CHOSEN: &str = "aababaabbababaabbbbaaaab";

#[test]
fn what_is_no_alias_is_refused() {
    let mirrored = |permille| AliasSpec {
        mirror: Some(AliasMirror {
            model: "m".parse().unwrap(),
            permille,
        }),
        ..alias(&[("a", 1)])
    };
    let sticky = |header: &str| AliasSpec {
        sticky_header: Some(header.to_owned()),
        ..alias(&[("a", 1)])
    };
    for (spec, says) in [
        (alias(&[]), "targets"),
        (alias(&[("a", 0)]), "no target with a weight"),
        (alias(&[("a", 1), ("a", 2)]), "twice"),
        (alias(&[("a", MAX_ALIAS_WEIGHT + 1)]), "weight"),
        (mirrored(0), "1 to 1000"),
        (mirrored(1_001), "1 to 1000"),
        (sticky(""), "header"),
        (sticky("X-User"), "lower case"),
        (sticky("a b"), "header"),
    ] {
        let refused = spec.check().unwrap_err();
        assert!(refused.message.contains(says), "{}", refused.message);
    }
    sticky("x-user").check().unwrap();
    mirrored(1).check().unwrap();
}

proptest! {
    /// An increased weight moves requests only to that target, and a reduced weight moves requests
    /// only away from it. Adding or removing a target has the same effect.
    #[test]
    fn a_change_of_weights_moves_only_what_it_must(
        weights in prop::collection::vec(0_u32..100, 2..6),
        changed in any::<prop::sample::Index>(),
        to in 0_u32..100,
    ) {
        prop_assume!(weights.iter().any(|weight| *weight != 0));
        let names = ["a", "b:1", "b:2", "c", "d", "e"];
        let spec = |weights: &[u32]| {
            let targets: Vec<_> = names.iter().copied().zip(weights.iter().copied()).collect();
            alias(&targets)
        };
        let index = changed.index(weights.len());
        let mut after = weights.clone();
        after[index] = to;
        prop_assume!(after.iter().any(|weight| *weight != 0));
        let (old, new) = (spec(&weights), spec(&after));
        let moved: ModelRef = names[index].parse().unwrap();
        for key in keys(300) {
            let (was, is) = (old.choose(key).unwrap(), new.choose(key).unwrap());
            if was != is {
                prop_assert!(*was == moved || *is == moved);
                prop_assert_eq!(*is == moved, weights[index] < to);
            }
        }
    }
}
