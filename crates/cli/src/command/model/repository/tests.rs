use super::*;

#[test]
fn ensembles_come_behind_those_that_they_call() {
    let calls = |names: &[&str]| {
        let steps = names.iter().map(|name| json!({ "model_name": name }));
        json!({ "ensemble_scheduling": { "step": steps.collect::<Vec<_>>() } })
    };
    let ensembles = [("a", vec!["b", "m"]), ("b", vec!["c"]), ("c", vec!["m"])];
    let ensembles = ensembles.map(|(name, called)| (name.to_owned(), calls(&called)));
    let ordered = in_order(ensembles.into());
    let names: Vec<_> = ordered.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["c", "b", "a"]);
    let circle = [("a", vec!["b"]), ("b", vec!["a"])];
    let circle = circle.map(|(name, called)| (name.to_owned(), calls(&called)));
    assert_eq!(in_order(circle.into()).len(), 2);
}

#[test]
fn a_repository_has_a_model_in_each_directory() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["b/1", "a/1", ".git"] {
        std::fs::create_dir_all(folder.path().join(name)).unwrap();
    }
    std::fs::write(folder.path().join("readme.md"), "").unwrap();
    let names: Vec<_> = models(folder.path())
        .unwrap()
        .into_iter()
        .map(|it| it.0)
        .collect();
    assert_eq!(names, ["a", "b"]);
    assert!(models(&folder.path().join("none")).is_err());
}
