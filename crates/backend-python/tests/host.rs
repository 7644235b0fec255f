//! The tests of the host program, in Python.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

use std::path::Path;
use std::process::Command;

/// Runs `host_tests` with the interpreter of this machine. Those of MLServer's classes need its
/// package, which `scripts/get-oip-clients.sh` fetches.
#[test]
fn the_tests_of_the_host_program_pass() {
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("python3")
        .args(["-B", "-m", "unittest", "discover", "-s", "host_tests"])
        .current_dir(crate_directory)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains("Ran "), "{printed}");
}
