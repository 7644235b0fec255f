use super::*;

fn action(target: &str) -> Action {
    Action {
        name: "model.deploy",
        target: target.to_owned(),
    }
}

#[test]
fn the_chain_goes_on_after_a_restart_and_a_torn_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let log = AuditLog::open(&path).unwrap();
    log.append("key 1", &action("a"), "ok").unwrap();
    drop(log);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, [&whole[..], b"{\"seq\":2,\"ti"].concat()).unwrap();
    let log = AuditLog::open(&path).unwrap();
    log.append("key 1", &action("\"},\"hash\":\"x\"}"), "not_found")
        .unwrap();
    assert_eq!(verify(&path).unwrap().seq, 2);
    let text = std::fs::read_to_string(&path).unwrap();
    for line in text.lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
}

#[test]
fn what_is_changed_removed_or_put_in_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let log = AuditLog::open(&path).unwrap();
    for target in ["a", "b", "c", "d"] {
        log.append("key 1", &action(target), "ok").unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let changed = text.replace("\"b\"", "\"x\"");
    let removed = [lines[0], lines[2], lines[3], ""].join("\n");
    let doubled = [lines[0], lines[1], lines[1], ""].join("\n");
    for bad in [changed, removed, doubled] {
        std::fs::write(&path, bad).unwrap();
        assert_eq!(verify(&path).unwrap_err().code, ErrorCode::Conflict);
        assert!(AuditLog::open(&path).is_err());
    }
}

#[test]
fn a_full_file_is_kept_and_the_chain_goes_on_in_a_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let log = AuditLog::open_with(&path, 400).unwrap();
    for _ in 0..4 {
        log.append("key 1", &action("a"), "ok").unwrap();
    }
    let kept = folder.path().join("audit.until-2.jsonl");
    assert_eq!(verify(&kept).unwrap().seq, 2);
    assert_eq!(verify(&path).unwrap().seq, 4);
}
