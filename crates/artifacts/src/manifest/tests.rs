use proptest::prelude::*;

use super::*;

#[test]
fn a_directory_is_described_and_read_again() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("1")).unwrap();
    std::fs::write(directory.path().join("1/model.onnx"), "abc").unwrap();
    std::fs::write(directory.path().join(MANIFEST), "an older one").unwrap();
    let text = describe(directory.path()).unwrap();
    let entries = parse(text.as_bytes()).unwrap();
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].path, "1/model.onnx");
    assert_eq!(entries[0].bytes, 3);
    let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(entries[0].sha256.to_string(), known);
    std::os::unix::fs::symlink("/etc/passwd", directory.path().join("link")).unwrap();
    assert!(describe(directory.path()).is_err());
}

#[test]
fn paths_that_leave_the_directory_are_refused() {
    for path in [
        "", "/etc/x", "../x", "a/../x", "a//b", "./a", "a\\b", "a\0b", "a/",
    ] {
        assert!(relative(path).is_err(), "{path:?}");
    }
    assert!(relative(&"a/".repeat(20)).is_err());
    assert_eq!(relative("a/b.onnx").unwrap(), Path::new("a/b.onnx"));
}

proptest! {
    #[test]
    fn any_text_is_a_manifest_or_is_refused(text in ".*", path in ".*", bytes: u64) {
        let _ = parse(text.as_bytes());
        let sha256 = "0".repeat(64);
        let record = Record { path, bytes, sha256 };
        let text = serde_json::to_vec(&Document { files: vec![record] }).unwrap();
        if let Ok(entries) = parse(&text) {
            let inside = relative(&entries[0].path).unwrap();
            let stays = |part| matches!(part, std::path::Component::Normal(_));
            prop_assert!(inside.components().all(stays));
        }
    }
}
