use super::*;

#[test]
fn the_next_process_knows_when_the_last_one_failed() {
    let folder = tempfile::tempdir().unwrap();
    let failures = Failures::open(folder.path());
    assert_eq!(failures.last_s(), 0);
    failures.note("its disk was lost");
    assert_ne!(failures.last_s(), 0);
    assert_eq!(Failures::open(folder.path()).last_s(), failures.last_s());
}
