//! SIGTERM and Ctrl-C: the first signal starts the drain, the second ends the process immediately.

use tokio_util::sync::CancellationToken;

use crate::terminal::Terminal;

/// A token that the first signal cancels. Must be called in a Tokio runtime.
///
/// # Errors
/// When the signal handlers cannot be installed.
pub(crate) fn shutdown() -> anyhow::Result<CancellationToken> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let cancelled = token.clone();
    tokio::spawn(async move {
        for first in [true, false] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if first {
                let text = "draining: waiting for running streams to end; send the signal again \
                            to stop at once";
                let _ = Terminal::stderr().line(text);
                cancelled.cancel();
            }
        }
        #[expect(clippy::disallowed_methods, reason = "the operator asked twice")]
        std::process::exit(130);
    });
    Ok(token)
}
