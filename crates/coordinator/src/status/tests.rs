use std::collections::BTreeSet;

use volley_types::registry::{Deployment, Rollout};
use volley_types::{ModelName, Revision};

use super::*;

#[test]
fn what_answers_during_a_rollout_is_told_and_so_after_it_failed() {
    let (one, two) = (ModelVersion(1), ModelVersion(2));
    let mut entry = ModelEntry {
        name: ModelName::new("m").unwrap(),
        versions: BTreeMap::new(),
        deployment: None,
        placement: Vec::new(),
        ever_deployed: true,
        group: None,
        deleted_tasks: BTreeSet::new(),
    };
    let ready = |versions: &[ModelVersion]| versions.iter().map(|it| (*it, 1)).collect();
    assert!(serving(&entry, &ready(&[one])).is_empty(), "not deployed");
    let deployment = entry
        .deployment
        .insert(Deployment::new(two, 1, Revision(1)));
    deployment.rollout = Some(Rollout {
        from: one,
        previous: Vec::new(),
        paused: false,
        stopped: Some("no graph".to_owned()),
    });
    for (there, told) in [
        (&[][..], &[][..]),
        (&[one], &[one]),
        (&[two], &[two]),
        (&[one, two], &[one, two]),
        (&[ModelVersion(7)], &[ModelVersion(7)]),
    ] {
        assert_eq!(serving(&entry, &ready(there)), told, "{there:?}");
    }
    if let Some(deployment) = &mut entry.deployment {
        deployment.options.keep_previous = 1;
    }
    assert_eq!(serving(&entry, &ready(&[one, two])), [one], "it stays");
}
