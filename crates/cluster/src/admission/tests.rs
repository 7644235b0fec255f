use super::*;

#[test]
fn a_refusal_names_the_command_that_replaces_the_node() {
    let answer = refused(Refusal::Lost, Some(3));
    let (refusal, highest) = refusal_of(&answer).unwrap();
    let reason = reason(refusal, 2, "n2:1", highest);
    assert!(reason.contains("cluster replace 2 4 n2:1"), "{reason}");
}
