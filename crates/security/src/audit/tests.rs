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
    assert!(!verify(&path).unwrap().torn);
    std::fs::write(&path, [&whole[..], b"{\"seq\":2,\"ti"].concat()).unwrap();
    assert!(verify(&path).unwrap().torn);
    let log = AuditLog::open(&path).unwrap();
    log.append("key 1", &action("\"},\"hash\":\"x\"}"), "not_found")
        .unwrap();
    assert_eq!(verify(&path).unwrap().head.seq, 2);
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
fn a_full_file_that_was_kept_without_a_new_one_stops_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let log = AuditLog::open_with(&path, 400).unwrap();
    for _ in 0..2 {
        log.append("key 1", &action("a"), "ok").unwrap();
    }
    // The state that an earlier attempt left on a full disk.
    std::fs::rename(&path, folder.path().join("audit.until-2.jsonl")).unwrap();
    log.append("key 1", &action("b"), "ok").unwrap();
    let checked = verify(&path).unwrap();
    assert_eq!((checked.head.seq, checked.files.len()), (3, 2));
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
    assert_eq!(verify(&kept).unwrap().head.seq, 2);
    let checked = verify(&path).unwrap();
    assert_eq!((checked.head.seq, checked.behind), (4, None));
    assert_eq!(checked.files, [kept.clone(), path.clone()]);

    // Stopped when the file was full: the next entry is still the fifth.
    drop(log);
    std::fs::rename(&path, folder.path().join("audit.until-4.jsonl")).unwrap();
    let log = AuditLog::open_with(&path, 400).unwrap();
    log.append("key 1", &action("a"), "ok").unwrap();
    let checked = verify(&path).unwrap();
    assert_eq!((checked.head.seq, checked.files.len()), (5, 3));

    // An older file may be stored elsewhere; its chain head is reported. Another file in its place
    // is rejected.
    std::fs::rename(&kept, folder.path().join("elsewhere")).unwrap();
    let behind = verify(&path).unwrap().behind.unwrap();
    let elsewhere = verify(&folder.path().join("elsewhere")).unwrap();
    assert_eq!(behind, elsewhere.head);
    let other = AuditLog::open(&folder.path().join("other.jsonl")).unwrap();
    for _ in 0..2 {
        other.append("key 2", &action("b"), "ok").unwrap();
    }
    std::fs::rename(folder.path().join("other.jsonl"), &kept).unwrap();
    assert_eq!(verify(&path).unwrap_err().code, ErrorCode::Conflict);
}

#[test]
fn lines_that_are_gone_from_the_beginning_are_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let log = AuditLog::open(&path).unwrap();
    for target in ["a", "b", "c"] {
        log.append("key 1", &action(target), "ok").unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let (_, rest) = text.split_once('\n').unwrap();
    std::fs::write(&path, rest).unwrap();
    assert_eq!(verify(&path).unwrap().behind.unwrap().seq, 1);
}

#[test]
fn a_target_of_any_length_leaves_a_trail_that_opens() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let log = AuditLog::open(&path).unwrap();
    log.append("key 1", &action(&"\u{1}".repeat(100_000)), "ok")
        .unwrap();
    drop(log);
    AuditLog::open(&path).unwrap();
}
