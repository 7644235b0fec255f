//! `volley config migrate`, and nodes with files of another format version.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::support::{complaint, text, volley};

const BEFORE: &str = "# Mine.\n\n[node]\nid = \"w\"\n[listen]\nflight = \"127.0.0.1:1\"\nhttp = \
                      \"127.0.0.1:2\"\n[cluster]\ncoordinators = [\"127.0.0.1:3\"]\n[limits]\n\
                      queue_timeout = \"5s\" # short\n";
const NOW: &str = "# Mine.\nversion = 1\n\n[node]\nid = \"w\"\n[listen]\nflight = \"127.0.0.1:1\"\n\
                   http = \"127.0.0.1:2\"\n[cluster]\ncoordinators = [\"127.0.0.1:3\"]\n[queue]\n\
                   timeout = \"5s\" # short\n";

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_node_names_the_command_that_rewrites_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), "worker.toml", BEFORE);
    let said = complaint(&volley(&["worker", "--config", &file]).await, 1);
    for part in [
        "worker.toml",
        "'limits.queue_timeout' is now 'queue.timeout'",
        "`volley config migrate FILE`",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let newer = NOW.replace("version = 1", "version = 9");
    let file = write(folder.path(), "newer.toml", &newer);
    let said = complaint(&volley(&["worker", "--config", &file]).await, 1);
    assert!(
        said.contains("format version 9") && said.contains("reads format version 1"),
        "{said}"
    );
}

#[tokio::test]
async fn a_file_is_printed_checked_or_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let file = write(folder.path(), "real.toml", BEFORE);
    let migrate = async |more: &[&str]| volley(&[&["config", "migrate"], more].concat()).await;
    assert_eq!(text(&migrate(&[&file]).await), NOW);
    let said = complaint(&migrate(&["--check", &file]).await, 1);
    assert!(
        said.contains("real.toml") && said.contains("--in-place"),
        "{said}"
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), BEFORE);

    // Through a symbolic link, which is kept, and with the permissions of the file.
    let mode = std::fs::Permissions::from_mode(0o640);
    std::fs::set_permissions(&file, mode).unwrap();
    let link = folder.path().join("link.toml");
    symlink("real.toml", &link).unwrap();
    let said = text(&migrate(&["--in-place", link.to_str().unwrap()]).await);
    assert!(said.contains("rewritten, 1 key renamed"), "{said}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), NOW);
    assert!(link.symlink_metadata().unwrap().is_symlink());
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);

    assert_eq!(text(&migrate(&["--check", &file]).await), "");
    let said = text(&migrate(&["--in-place", &file]).await);
    assert!(said.contains("unchanged"), "{said}");
    assert_eq!(text(&migrate(&[&file]).await), NOW);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[tokio::test]
async fn no_file_is_replaced_unless_all_can_be() {
    let folder = tempfile::tempdir().unwrap();
    let good = write(folder.path(), "good.toml", BEFORE);
    for (name, wrong, why) in [
        (
            "key.toml",
            format!("{BEFORE}colour = 3\n"),
            "'limits.colour'",
        ),
        (
            "value.toml",
            BEFORE.replace("\"5s\"", "5"),
            "a duration with a unit",
        ),
        (
            "kind.toml",
            "[node]\nid = 1\n".to_owned(),
            "'listen.flight'",
        ),
    ] {
        let wrong = write(folder.path(), name, &wrong);
        let output = volley(&["config", "migrate", "--in-place", &good, &wrong]).await;
        let said = complaint(&output, 1);
        assert!(said.contains(name) && said.contains(why), "{said}");
        assert_eq!(std::fs::read_to_string(&good).unwrap(), BEFORE);
    }
    let both = volley(&["config", "migrate", &good, &good]).await;
    assert!(complaint(&both, 1).contains("--in-place"));
}
