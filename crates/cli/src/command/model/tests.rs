use super::*;

#[test]
fn an_undo_names_both_versions() {
    let answer = json!({ "deployed_version": 1, "deployment": { "replaced_version": 2 } });
    let line = undone("m", &answer).unwrap();
    assert!(
        line.contains("from version 2 to version 1") && line.contains("back to version 2"),
        "{line}"
    );
    assert_eq!(undone("m", &json!({ "deployed_version": 1 })), None);
}
