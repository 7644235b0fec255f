use volley_types::{ErrorCode, PredictError, WorkerId};

use super::ConnectorCheck;

fn verdict(checks: &[ConnectorCheck], test: bool) -> Result<Vec<String>, PredictError> {
    super::verdict(checks, test, "create the connector again")
}

fn check(worker: &str, outcome: Result<(), &str>) -> ConnectorCheck {
    let outcome = outcome.map_err(|message| PredictError::new(ErrorCode::Unavailable, message));
    ConnectorCheck {
        worker: WorkerId::new(worker).unwrap(),
        outcome,
    }
}

#[test]
fn what_no_worker_has_is_refused_and_what_some_lack_is_warned_of() {
    let lacks = |worker| check(worker, Err("its environment variable is missing"));
    let has = |worker| check(worker, Ok(()));
    assert!(verdict(&[has("a"), has("b")], true).unwrap().is_empty());
    assert!(verdict(&[], false).unwrap()[0].contains("no worker is live"));
    assert!(verdict(&[], true).unwrap()[0].contains("not tested"));
    let refused = verdict(&[lacks("a"), lacks("b")], false).unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidInput);
    for part in ["variable is missing", "worker a, b"] {
        assert!(refused.message.contains(part), "{refused}");
    }
    let warned = verdict(&[has("a"), lacks("b")], false).unwrap();
    assert!(warned[0].ends_with("on worker b"), "{warned:?}");
    // The first worker made the test call.
    assert!(verdict(&[lacks("a"), has("b")], true).is_err());
    let many: Vec<_> = (0..8)
        .map(|n| lacks(["a", "b", "c", "d", "e", "f", "g", "h"][n]))
        .collect();
    let refused = verdict(&many, false).unwrap_err();
    assert!(
        refused.message.contains("a, b, c, d, e and 3 more"),
        "{refused}"
    );
}
