use super::*;

fn name(text: &str) -> SecretName {
    SecretName::new(text).unwrap()
}

fn keys(folder: &std::path::Path, files: &[&str]) -> MasterKeys {
    let paths = files.iter().map(|file| {
        let path = folder.join(file);
        if !path.exists() {
            std::fs::write(&path, MasterKeys::generate().unwrap() + "\n").unwrap();
        }
        path
    });
    MasterKeys::load(paths.collect()).unwrap()
}

#[test]
fn a_secret_opens_under_its_name_and_its_master_key_alone() {
    let folder = tempfile::tempdir().unwrap();
    let keys_one = keys(folder.path(), &["one"]);
    let sealed = keys_one.seal(&name("a"), "sk-canary").unwrap();
    assert_eq!(keys_one.open(&name("a"), &sealed).unwrap(), "sk-canary");
    assert!(keys_one.open(&name("b"), &sealed).is_err());
    let two = keys(folder.path(), &["two"]);
    let refused = two.open(&name("a"), &sealed).unwrap_err();
    assert!(
        refused.message.contains("does not have"),
        "{}",
        refused.message
    );
    // No `Debug` output shows the secret, and two sealings of one secret differ.
    let shown = format!("{sealed:?} {keys_one:?}");
    assert!(!shown.contains("canary"));
    let again = keys_one.seal(&name("a"), "sk-canary").unwrap();
    assert_ne!(sealed.text, again.text);
    for length in [0, MAX_SECRET_BYTES + 1] {
        assert!(keys_one.seal(&name("a"), &"x".repeat(length)).is_err());
    }
}

#[test]
fn after_a_rotation_only_the_small_key_is_new_and_the_old_master_is_not_needed() {
    let folder = tempfile::tempdir().unwrap();
    let old = keys(folder.path(), &["old"]);
    let sealed = old.seal(&name("a"), "sk-canary").unwrap();
    assert_eq!(old.rewrap(&name("a"), &sealed).unwrap(), None);
    let both = keys(folder.path(), &["new", "old"]);
    assert_eq!(both.open(&name("a"), &sealed).unwrap(), "sk-canary");
    let rewrapped = both.rewrap(&name("a"), &sealed).unwrap().unwrap();
    assert_eq!(rewrapped.text, sealed.text);
    let new = keys(folder.path(), &["new"]);
    assert_eq!(new.open(&name("a"), &rewrapped).unwrap(), "sk-canary");
}

#[test]
fn a_file_that_is_no_key_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for content in ["", "short", "AAAA", &"A".repeat(100)] {
        let path = folder.path().join("key");
        std::fs::write(&path, content).unwrap();
        assert!(MasterKeys::load(vec![path]).is_err(), "{content:?}");
    }
    assert!(MasterKeys::load(Vec::new()).is_err());
}

proptest::proptest! {
    #[test]
    fn what_is_changed_does_not_open(at in 0_usize..200, flip in 1_u8.., in_key in proptest::bool::ANY) {
        let folder = tempfile::tempdir().unwrap();
        let keys = keys(folder.path(), &["one"]);
        let mut sealed = keys.seal(&name("a"), "sk-canary").unwrap();
        let bytes = if in_key { &mut sealed.key } else { &mut sealed.text };
        let at = at % bytes.len();
        bytes[at] ^= flip;
        proptest::prop_assert!(keys.open(&name("a"), &sealed).is_err());
    }
}
