//! A script that lacks something says so before it fetches or builds anything.

use std::path::Path;

use tokio::process::Command;

/// A folder that stands for a machine: programs that run, and stand-ins for versions that do not.
fn machine(folder: &Path, runs: &[&str], broken: &[&str]) {
    use std::os::unix::fs::PermissionsExt;
    for (names, script) in [
        (runs, "#!/bin/sh\nexit 0\n"),
        (broken, "#!/bin/sh\nexit 127\n"),
    ] {
        for name in names {
            let file = folder.join(name);
            std::fs::write(&file, script).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
    for name in ["bash", "basename", "dirname", "df", "awk", "mkdir"] {
        let program = ["/usr/bin", "/bin"].map(|bin| Path::new(bin).join(name));
        let program = program.into_iter().find(|it| it.exists());
        std::os::unix::fs::symlink(program.expect(name), folder.join(name)).unwrap();
    }
}

#[tokio::test]
async fn a_comparison_names_every_program_that_is_missing_before_it_builds() {
    let folder = tempfile::tempdir().unwrap();
    machine(folder.path(), &["cargo", "python3"], &["python3.12"]);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let output = Command::new("bash")
        .args(["scripts/bench-peers.sh", "encoders"])
        .current_dir(root)
        .env("PATH", folder.path())
        .output();
    let output = output.await.unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{told}");
    for missing in [
        "python3.12 does not run",
        "A C compiler ('cc') does not run",
    ] {
        assert!(told.contains(missing), "{told}");
    }
    for there in ["cargo", "python3 does not"] {
        assert!(!told.contains(there), "{told}");
    }
    assert!(!told.contains("==>"), "it began: {told}");
}
