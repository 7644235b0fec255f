use super::*;

#[test]
fn only_loopback_is_local() {
    for local in ["127.0.0.1:8420", "127.8.0.1:1", "[::1]:8420", "localhost:1"] {
        assert!(is_local(local), "{local}");
    }
    for open in ["0.0.0.0:8420", "[::]:8420", "10.0.0.1:1", "node-1:8420"] {
        assert!(!is_local(open), "{open}");
    }
}

#[test]
fn elsewhere_a_key_is_needed_or_somebody_says_that_none_is() {
    let plan = |keys, insecure| SecurityPlan {
        keys,
        insecure,
        ..SecurityPlan::default()
    };
    let callers = |plan: SecurityPlan, address| plan.allow_callers("x", address, "'y'");
    let refused = callers(plan(false, false), "0.0.0.0:8420").unwrap_err();
    let refused = refused.to_string();
    assert!(refused.contains("volley key bootstrap"), "{refused}");
    assert!(callers(plan(true, false), "0.0.0.0:1").is_ok());
    assert!(callers(plan(false, true), "0.0.0.0:1").is_ok());
    assert!(callers(plan(false, false), "127.0.0.1:1").is_ok());
    assert!(plan(true, false).allow_nodes("x", "0.0.0.0:1").is_err());
    assert!(plan(false, true).allow_nodes("x", "0.0.0.0:1").is_ok());
}
