use super::*;

#[test]
fn a_route_is_one_segment_of_a_path() {
    let routed = with_route(Signature::generation(), "/generate-stream").unwrap();
    assert_eq!(route_of(&routed), Some("generate-stream"));
    assert_eq!(route_of(&Signature::generation()), None);
    for wrong in ["", "/", "/a/b", "/..", "/a b", "/a?b", "/ü"] {
        let error = with_route(Signature::generation(), wrong).unwrap_err();
        assert!(error.message.contains("generate-stream"), "{error}");
    }
}
