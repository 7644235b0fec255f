//! The process that keeps a Python model, for the tests of this crate; a worker runs its own binary
//! as `volley python-host`.

fn main() -> std::process::ExitCode {
    volley_backend_python::keeper_main()
}
