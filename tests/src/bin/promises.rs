//! `promises`: what the cluster promises under load and to bad clients, measured, as a table.
//! See `volley_tests::overload`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that fails panics"
)]

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use volley_tests::overload::{SCENES, Scale, play};

/// Measures what is promised under load and to clients that misbehave.
#[derive(Debug, Parser)]
struct Arguments {
    /// Only these scenes: leader, quorum, worker, restarts, idle, stalled, slow, handshakes,
    /// flood, resets, cancels, overload, leaks.
    only: Vec<String>,
    /// As few of everything as the tests have.
    #[arg(long)]
    small: bool,
    /// Streams of the scene `leaks`.
    #[arg(long)]
    streams: Option<usize>,
}

#[tokio::main]
async fn main() -> ExitCode {
    // The first of this process.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let arguments = Arguments::parse();
    let mut scale = if arguments.small {
        Scale::small()
    } else {
        Scale::full()
    };
    scale.streams = arguments.streams.unwrap_or(scale.streams);
    if let Some(unknown) = arguments
        .only
        .iter()
        .find(|name| !SCENES.contains(&&***name))
    {
        say(&format!(
            "no scene is called '{unknown}'; there are {}\n",
            SCENES.join(", ")
        ));
        return ExitCode::FAILURE;
    }
    let wanted =
        |scene: &str| arguments.only.is_empty() || arguments.only.iter().any(|n| n == scene);
    say("| promise | measured | kept |\n|---|---|---|\n");
    let mut broken = 0;
    for scene in SCENES.into_iter().filter(|scene| wanted(scene)) {
        let figure = play(scene, &scale).await;
        let kept = if figure.held { "yes" } else { "**no**" };
        say(&format!(
            "| {} | {} | {kept} |\n",
            figure.promise, figure.told
        ));
        broken += usize::from(!figure.held);
    }
    match broken {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn say(text: &str) {
    // A reader that went away misses nothing that it wants.
    let _ = std::io::stdout().write_all(text.as_bytes());
}
