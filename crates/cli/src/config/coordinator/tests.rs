use volley_cluster::RaftTiming;

use super::*;

fn planned(raft: &str) -> anyhow::Result<CoordinatorPlan> {
    let text = format!(
        "version = 1\n[node]\nid = 1\ndata_dir = \"data\"\n[listen]\npublic = \"127.0.0.1:1\"\n\
         internal = \"127.0.0.1:2\"\n[raft]\n{raft}\n\
         [cluster.bootstrap]\n1 = \"127.0.0.1:2\"\n"
    );
    plan(CoordinatorFile::parse(&text)?)
}

#[test]
fn one_multiplier_slows_all_clocks_of_consensus_and_what_writes_may_take() {
    let usual = planned("").unwrap().cluster;
    assert_eq!(usual.timing, RaftTiming::default());
    assert_eq!(usual.write_timeout, Duration::from_secs(2));
    let slow = planned("timeout_multiplier = 4").unwrap().cluster;
    assert_eq!(slow.timing, RaftTiming::slowed(4));
    assert_eq!(slow.write_timeout, Duration::from_secs(8));
    let both = planned("timeout_multiplier = 4\nwrite_timeout = \"5s\"").unwrap();
    assert_eq!(both.cluster.write_timeout, Duration::from_secs(5));
    // The limit without a timeout multiplier.
    assert!(planned("write_timeout = \"500ms\"").is_ok());
    for (bad, why) in [
        ("timeout_multiplier = 0", "must be 1 to 10"),
        ("timeout_multiplier = 11", "must be 1 to 10"),
        ("timeout_multiplier = -1", "timeout_multiplier"),
        ("timeout_multiplier = 1.5", "timeout_multiplier"),
        (
            "timeout_multiplier = 4\nwrite_timeout = \"4s\"",
            "must be longer than 4s",
        ),
    ] {
        let error = format!("{:#}", planned(bad).unwrap_err());
        assert!(error.contains(why), "{bad}: {error}");
    }
}
