use super::*;

#[test]
fn figures_are_judged() {
    let text = "Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  1048576  files\n";
    assert_eq!(open_files(text).unwrap().verdict, Verdict::Notice);
    let many = text.replace("1024 ", "1048576 ");
    assert_eq!(open_files(&many).unwrap().verdict, Verdict::Good);
    let place = Path::new("/x");
    let verdicts = [3, 30, 300].map(|ms| latency(place, Duration::from_millis(ms)).verdict);
    assert_eq!(verdicts, [Verdict::Good, Verdict::Notice, Verdict::Bad]);
    let verdicts = [100, 5, 0].map(|gib| free(place, gib << 30).verdict);
    assert_eq!(verdicts, [Verdict::Good, Verdict::Notice, Verdict::Bad]);
}

#[test]
fn a_key_that_others_may_read_is_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    std::fs::write(&file, "k").unwrap();
    let mode = |mode| {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        open(&file).map(|finding| finding.verdict)
    };
    assert_eq!(mode(0o644), Some(Verdict::Notice));
    assert_eq!(mode(0o660), Some(Verdict::Notice));
    assert_eq!((mode(0o600), mode(0o640)), (None, None));
}

#[test]
fn a_taken_port_and_a_folder_that_is_not_there_yet() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    assert_eq!(port("public", &address).verdict, Verdict::Notice);
    assert_eq!(port("public", "192.0.2.1:1").verdict, Verdict::Bad);
    let folder = tempfile::tempdir().unwrap();
    let findings = disk(&folder.path().join("not/yet"));
    assert_eq!(findings.len(), 2);
    assert!(findings[0].detail.contains("a sync takes"), "{findings:?}");
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        0,
        "nothing is left"
    );
}
