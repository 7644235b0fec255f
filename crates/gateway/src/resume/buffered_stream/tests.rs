use futures::FutureExt;
use proptest::prelude::*;
use volley_types::{NodeId, TenantId};

use super::*;

fn held(limit: usize) -> Arc<BufferedStream> {
    let id = StreamId::new(NodeId(1), "abcdefghijklmnopqrstuv").unwrap();
    let owner = StreamOwner {
        caller: "me".to_owned(),
        tenant: TenantId::default(),
    };
    Arc::new(BufferedStream::new(id, owner, limit, 0))
}

fn event(sequence: u64) -> Bytes {
    Bytes::from(format!("{sequence};"))
}

/// The events that a reader after `after` receives at once.
fn rest(held: &Arc<BufferedStream>, after: u64) -> String {
    let mut reader = held.read(after).unwrap().expect("there is more");
    let mut text = String::new();
    while let Some(Some(Ok(piece))) = reader.next().now_or_never() {
        text.push_str(std::str::from_utf8(&piece).unwrap());
    }
    text
}

proptest! {
    #[test]
    fn whatever_a_reader_has_had_the_rest_follows_without_gap_or_duplicate(
        steps in proptest::collection::vec((1..5_u64, 0..60_u64), 1..30),
    ) {
        // Space for about 40 events.
        let held = held(40 * (EVENT_BYTES + 3));
        let (mut written, mut had) = (0, 0);
        for (more, back) in steps {
            let events: Vec<_> = (written + 1..=written + more).map(event).collect();
            if held.room(total(&events)).now_or_never().is_some() {
                held.push(events);
                written += more;
            }
            let after = had - back.min(had);
            match held.read(after) {
                Ok(reader) => {
                    drop(reader);
                    let expected: String =
                        (after + 1..=written).map(|at| format!("{at};")).collect();
                    prop_assert_eq!(rest(&held, after), expected);
                    had = written;
                }
                Err(error) => {
                    prop_assert_eq!(error.code, ErrorCode::NotFound);
                    prop_assert!(after + 20 < written, "half of the ring is always there");
                }
            }
            prop_assert!(held.state.lock().bytes <= 40 * (EVENT_BYTES + 3));
        }
    }
}

#[tokio::test]
async fn what_nobody_has_read_makes_its_writer_wait() {
    let held = held(4 * (EVENT_BYTES + 2));
    held.push(vec![event(1), event(2)]);
    assert!(held.room(total(&[event(3)])).now_or_never().is_none());
    assert_eq!(rest(&held, 0), "1;2;");
    assert!(held.room(total(&[event(3)])).now_or_never().is_some());
    // The events are unread again for a reader that starts over.
    let _reader = held.read(0).unwrap().unwrap();
    assert!(held.room(total(&[event(3)])).now_or_never().is_none());
}

#[tokio::test]
async fn the_newest_reader_reads_alone() {
    let held = held(1 << 20);
    let mut old = held.read(0).unwrap().unwrap();
    held.push(vec![event(1)]);
    let mut new = held.read(0).unwrap().unwrap();
    let sent_away = old.next().await.unwrap().unwrap_err();
    assert_eq!(sent_away.code, ErrorCode::Conflict);
    drop(old);
    assert!(held.in_use(), "the old one's end is not the new one's");
    assert_eq!(new.next().await.unwrap().unwrap(), "1;");
    held.end(StreamEnd::Finished);
    assert!(new.next().await.is_none());
    assert!(held.done_since().is_none());
    drop(new);
    assert!(held.done_since().is_some());
    assert!(held.read(1).unwrap().is_none(), "nothing is left");
    assert_eq!(rest(&held, 0), "1;", "what did not arrive is there still");
    assert_eq!(held.read(2).err().unwrap().code, ErrorCode::InvalidInput);
    held.end(StreamEnd::Cancelled);
    assert_eq!(held.read(0).err().unwrap().code, ErrorCode::NotFound);
}

#[tokio::test(start_paused = true)]
async fn it_is_abandoned_once_nobody_came_for_a_whole_window() {
    let held = held(1 << 20);
    let window = Duration::from_secs(60);
    let begun = Instant::now();
    let abandoned = held.abandoned(window);
    tokio::pin!(abandoned);
    tokio::time::advance(Duration::from_secs(59)).await;
    assert!(futures::poll!(&mut abandoned).is_pending());
    let reader = held.read(0).unwrap();
    tokio::time::advance(Duration::from_secs(600)).await;
    assert!(futures::poll!(&mut abandoned).is_pending());
    drop(reader);
    abandoned.await;
    assert_eq!(begun.elapsed().as_secs(), 59 + 600 + 60);
}
