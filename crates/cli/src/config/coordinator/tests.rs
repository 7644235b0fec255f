use volley_cluster::RaftTiming;

use super::*;

fn planned(cluster: &str) -> anyhow::Result<CoordinatorPlan> {
    let text = format!(
        "[node]\nid = 1\ndata_dir = \"data\"\n[listen]\npublic = \"127.0.0.1:1\"\n\
         internal = \"127.0.0.1:2\"\n[cluster]\n{cluster}\n\
         [cluster.bootstrap]\n1 = \"127.0.0.1:2\"\n"
    );
    plan(toml::from_str(&text)?)
}

#[test]
fn one_multiplier_slows_all_clocks_of_consensus_and_what_writes_may_take() {
    let usual = planned("").unwrap().cluster;
    assert_eq!(usual.timing, RaftTiming::default());
    assert_eq!(usual.write_timeout, Duration::from_secs(2));
    let slow = planned("raft_multiplier = 4").unwrap().cluster;
    assert_eq!(slow.timing, RaftTiming::slowed(4));
    assert_eq!(slow.write_timeout, Duration::from_secs(8));
    let both = planned("raft_multiplier = 4\nwrite_timeout = \"5s\"").unwrap();
    assert_eq!(both.cluster.write_timeout, Duration::from_secs(5));
    // As before, where nobody says how slow the clocks are.
    assert!(planned("write_timeout = \"500ms\"").is_ok());
    for (bad, why) in [
        ("raft_multiplier = 0", "must be 1 to 10"),
        ("raft_multiplier = 11", "must be 1 to 10"),
        ("raft_multiplier = -1", "raft_multiplier"),
        ("raft_multiplier = 1.5", "raft_multiplier"),
        (
            "raft_multiplier = 4\nwrite_timeout = \"4s\"",
            "must be longer than 4s",
        ),
    ] {
        let error = format!("{:#}", planned(bad).unwrap_err());
        assert!(error.contains(why), "{bad}: {error}");
    }
}
