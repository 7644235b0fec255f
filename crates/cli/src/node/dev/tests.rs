use super::*;

#[test]
fn sources_are_watched_and_what_programs_write_is_not() {
    let is_source = |path: &str| super::is_source(Path::new("/m"), Path::new(path));
    for path in ["/m/app.py", "/m/lib/a.py", "/m/model-settings.json"] {
        assert!(is_source(path), "{path}");
    }
    for path in [
        "/m/__pycache__/app.cpython-311.pyc",
        "/m/.venv/lib/a.py",
        "/m/.app.py.swp",
        "/m/out.bin",
        "/else/a.py",
    ] {
        assert!(!is_source(path), "{path}");
    }
}
