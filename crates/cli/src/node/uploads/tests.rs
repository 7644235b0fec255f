use super::*;

#[test]
fn a_directory_of_any_name_has_a_url() {
    let url = url_of(Path::new("/home/a b/vol%ley")).unwrap();
    assert_eq!(url.as_str(), "file:///home/a%20b/vol%25ley/");
    assert!(url_of(Path::new("here")).is_err());
}
