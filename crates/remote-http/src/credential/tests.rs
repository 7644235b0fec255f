use super::*;

#[tokio::test]
async fn a_secret_is_read_trimmed_and_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret-key");
    std::fs::write(&path, " sk-canary\n").unwrap();
    let reference = CredentialRef::File(path.to_string_lossy().into_owned());
    let secret = Secret::read(&reference, &Opener::default()).await.unwrap();
    std::fs::remove_file(&path).unwrap();
    let header = secret.header("Bearer ").unwrap().unwrap();
    assert_eq!(header.as_bytes(), b"Bearer sk-canary");
    assert!(!format!("{secret:?}{header:?}").contains("canary"));
    assert_eq!(secret.redact("bad key sk-canary"), "bad key [redacted]");
    let error = Secret::read(&reference, &Opener::default())
        .await
        .unwrap_err();
    assert!(error.message.contains("file") && !error.message.contains("secret-"));
    assert!(error.code.may_retry_elsewhere());
    let none = CredentialRef::Env("VOLLEY_TEST_NO_SUCH_ACCESS_KEY_ID".to_owned());
    assert!(Secret::read_keys(&none, &Opener::default()).await.is_err());
    let endless = CredentialRef::File("/dev/zero".to_owned());
    assert!(Secret::read(&endless, &Opener::default()).await.is_err());
}

#[tokio::test]
async fn keys_that_sign_are_in_one_file_and_none_of_them_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    let reference = CredentialRef::File(path.to_string_lossy().into_owned());
    std::fs::write(&path, "AKID:canary:token\n").unwrap();
    let secret = Secret::read_keys(&reference, &Opener::default())
        .await
        .unwrap();
    assert!(secret.header("Bearer ").unwrap().is_none());
    assert_eq!(secret.redact("canary, token"), "[redacted], [redacted]");
    assert!(!format!("{secret:?}").contains("canary"));
    std::fs::write(&path, "one-token\n").unwrap();
    let secret = Secret::read_keys(&reference, &Opener::default())
        .await
        .unwrap();
    let header = secret.header("Bearer ").unwrap().unwrap();
    assert_eq!(header.as_bytes(), b"Bearer one-token");
}
