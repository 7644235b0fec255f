use super::*;

#[test]
fn certificates_are_told_of_before_they_end() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("node.pem");
    let mut parameters = rcgen::CertificateParams::new(vec!["node".to_owned()]).unwrap();
    parameters.not_before = rcgen::date_time_ymd(2040, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(2049, 12, 31);
    let key = rcgen::KeyPair::generate().unwrap();
    std::fs::write(&file, parameters.self_signed(&key).unwrap().pem()).unwrap();
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(2_524_521_600);
    let day = Duration::from_secs(24 * 3_600);
    let begins = SystemTime::UNIX_EPOCH + Duration::from_secs(2_208_988_800);
    let verdict = |now: SystemTime| expiry(&file, now).verdict;
    assert_eq!(verdict(begins), Verdict::Good);
    assert_eq!(verdict(begins - day), Verdict::Bad);
    assert_eq!(verdict(end - 31 * day), Verdict::Good);
    assert_eq!(verdict(end - 29 * day), Verdict::Notice);
    assert_eq!(verdict(end + day), Verdict::Bad);
    std::fs::write(&file, "no certificate").unwrap();
    assert_eq!(verdict(end), Verdict::Bad);
    assert_eq!(
        expiry(&folder.path().join("none"), end).verdict,
        Verdict::Bad
    );
}

fn coordinator(id: u64) -> serde_json::Value {
    serde_json::json!({
        "id": id, "address": "h:1", "voter": true, "level": 2, "version": "1.0.0",
    })
}

/// The findings for a healthy status with these changes.
fn told(changes: serde_json::Value) -> Vec<(Verdict, String)> {
    let mut status = serde_json::json!({
        "node": { "id": 1, "role": "leader", "leader": 1, "term": 1 },
        "registry_revision": 1, "level": 2, "active_streams": 0,
        "coordinators": [coordinator(1), coordinator(2), coordinator(3)],
        "workers": [], "models": [], "drains": [],
    });
    for (name, value) in changes.as_object().unwrap() {
        status[name] = value.clone();
    }
    let status: Status = serde_json::from_value(status).unwrap();
    let findings = cluster("u", &status).into_iter();
    findings
        .map(|it| {
            (
                it.verdict,
                format!("{} {} {}", it.what, it.detail, it.advice),
            )
        })
        .collect()
}

#[test]
fn what_a_cluster_tells_of_itself_is_judged() {
    let well = told(serde_json::json!({}));
    assert_eq!(well.len(), 1, "{well:?}");
    assert_eq!(well[0].0, Verdict::Good);
    let lost = serde_json::json!({ "id": 1, "role": "follower", "leader": null, "term": 3 });
    assert_eq!(told(serde_json::json!({ "node": lost }))[0].0, Verdict::Bad);
    let behind = |level: u64| serde_json::json!({ "id": level, "address": "h:1", "voter": true, "level": level });
    let worker = serde_json::json!({
        "id": "w", "address": "h:2", "liveness": "dead", "last_heard_ms": 9,
        "memory_bytes": 1, "replicas": [],
    });
    let drain = serde_json::json!({ "node": "w", "kind": "worker", "state": "draining" });
    let model = serde_json::json!({
        "id": "m", "version": 1, "state": "PARTIALLY_DEPLOYED", "desired_replicas": 2,
        "ready_replicas": 1,
    });
    let silent = serde_json::json!({
        "id": 3, "address": "h:3", "voter": true, "level": null, "version": null,
    });
    let beside = [coordinator(1), coordinator(2), silent];
    let told_of = told(serde_json::json!({ "coordinators": beside }));
    let (verdict, text) = &told_of[1];
    assert_eq!(*verdict, Verdict::Notice);
    assert!(text.contains("3 at h:3 does not respond to 1"), "{text}");
    let notices = [
        (
            "levels",
            serde_json::json!({ "coordinators": [behind(1), behind(2), behind(3)] }),
        ),
        (
            "voters",
            serde_json::json!({ "coordinators": [behind(2), behind(2)] }),
        ),
        ("worker", serde_json::json!({ "workers": [worker] })),
        ("drain", serde_json::json!({ "drains": [drain] })),
        ("model", serde_json::json!({ "models": [model] })),
    ];
    for (what, changes) in notices {
        let told = told(changes);
        let found = told.iter().find(|(_, text)| text.starts_with(what));
        let (verdict, text) = found.unwrap_or_else(|| panic!("{what}: {told:?}"));
        assert_eq!(*verdict, Verdict::Notice, "{text}");
        assert!(!text.trim_end().ends_with(what), "{text}");
    }
}

#[test]
fn clocks_may_differ_by_what_an_answer_rounds() {
    let now = SystemTime::now();
    let verdict = |seconds| clock("x", now, now - Duration::from_secs(seconds)).verdict;
    assert_eq!((verdict(2), verdict(3)), (Verdict::Good, Verdict::Notice));
    let ahead = clock("x", now, now + Duration::from_secs(60));
    assert!(ahead.detail.contains("60 s"), "{ahead:?}");
}
