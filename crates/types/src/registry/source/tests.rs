use proptest::prelude::*;

use super::*;

#[test]
fn a_url_is_told_apart_into_its_parts() {
    let url = ModelUrl::parse("HTTPS://Models.Example.com:8443/a/Model.zip").unwrap();
    assert_eq!(url.as_str(), "https://models.example.com:8443/a/Model.zip");
    assert_eq!(url.authority(), "models.example.com:8443");
    assert_eq!(url.path(), "/a/Model.zip");
    assert_eq!(url.kind(), ModelUrlKind::Zip);
    let prefix = ModelUrl::parse("https://models.example.com:8443/a/").unwrap();
    assert!(url.is_below(&prefix));
    assert!(!prefix.is_below(&url));
    let bucket = ModelUrl::parse("s3://Bucket/x/").unwrap();
    assert_eq!(
        (bucket.authority(), bucket.scheme()),
        ("Bucket", ModelUrlScheme::S3)
    );
    assert_eq!(ModelUrl::parse("file:///m/").unwrap().authority(), "");
}

#[test]
fn what_hides_a_credential_or_a_way_out_is_refused() {
    for (text, says) in [
        ("/models/a", "scheme"),
        ("ftp://host/a.zip", "scheme"),
        ("https://user:key@host/a.zip", "workers' configuration"),
        ("https://host/a.zip?sig=key", "workers' configuration"),
        ("https://host/a.zip#x", "fragment"),
        ("https://host/a", "must end in"),
        ("https://host", "path"),
        ("https:///a.zip", "host"),
        ("file://host/a/", "file:///"),
        ("https://host/a/../b.zip", "'..'"),
        ("https://host/a/%2E%2e/b.zip", "'..'"),
        ("https://host/a//b.zip", "empty"),
        ("https://host/a%2fb.zip", "slash"),
        ("https://host/a b.zip", "space"),
        ("https://ho\u{131}st/a.zip", "host"),
    ] {
        let refused = ModelUrl::parse(text).unwrap_err();
        assert!(
            refused.message.contains(says),
            "{text}: {}",
            refused.message
        );
    }
}

#[test]
fn a_hash_reads_as_it_is_written() {
    let text = "00ff".repeat(16);
    let hash: Sha256 = text.to_uppercase().parse().unwrap();
    assert_eq!(hash.to_string(), text);
    assert!("é".repeat(32).parse::<Sha256>().is_err());
    assert!("0".repeat(63).parse::<Sha256>().is_err());
}

proptest! {
    #[test]
    fn any_text_is_a_url_that_reads_the_same_again_or_is_refused(
        text in "(file|https?|s3|gs|az)?(://)?.{0,12}/.{0,12}(\\.zip|/)?"
    ) {
        if let Ok(url) = ModelUrl::parse(&text) {
            prop_assert_eq!(ModelUrl::parse(url.as_str()).unwrap(), url.clone());
            prop_assert!(!url.path().split('/').any(|part| part == ".."));
        }
        let _ = text.parse::<Sha256>();
    }
}
