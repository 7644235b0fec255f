//! More than there is room for, and clients that misbehave, in small: `scripts/promises.sh` has
//! them in full.

use std::io::Write;

use volley_tests::overload::{Scale, play};

/// Plays a scene, and tells what it showed with `--nocapture`.
async fn keeps(scene: &str) {
    let figure = play(scene, &Scale::small()).await;
    let line = format!("{}: {}\n", figure.promise, figure.told);
    // Nothing depends on it.
    let _ = std::io::stderr().write_all(line.as_bytes());
    assert!(figure.held, "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_resume_soon_after_a_leader_is_killed() {
    keeps("leader").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn predictions_go_on_without_most_coordinators() {
    keeps("quorum").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_worker_that_is_killed_are_answered_by_others() {
    keeps("worker").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_streams_take_little() {
    keeps("idle").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_do_not_read_are_cut_and_disturb_nobody() {
    keeps("stalled").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_senders_are_cut_and_disturb_nobody() {
    keeps("slow").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn handshakes_that_do_not_end_are_given_up() {
    keeps("handshakes").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_past_the_cap_are_refused_at_once() {
    keeps("flood").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_reset_as_they_come_end_their_connection() {
    keeps("resets").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_leave_leave_nothing_behind() {
    keeps("cancels").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_times_too_much_is_refused_and_what_was_admitted_is_answered() {
    keeps("overload").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_streams_leave_nothing_behind() {
    keeps("leaks").await;
}
