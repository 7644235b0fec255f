use tokio::sync::mpsc;

use super::*;

fn config(window_s: u64, stream_bytes: usize, total_bytes: usize) -> ResumeConfig {
    ResumeConfig {
        window: Duration::from_secs(window_s),
        stream_bytes,
        tenant_bytes: total_bytes,
        total_bytes,
    }
}

fn pieces(receiver: mpsc::Receiver<Bytes>) -> impl Stream<Item = Bytes> + Send {
    stream::unfold(receiver, async |mut receiver| {
        Some((receiver.recv().await?, receiver))
    })
}

fn mine() -> StreamOwner {
    StreamOwner {
        caller: "me".to_owned(),
        tenant: TenantId::default(),
    }
}

async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[test]
fn each_event_has_its_id_and_stays_as_it_was() {
    let id = StreamId::new(NodeId(3), "abcdefghijklmnopqrstuv").unwrap();
    let mut sequence = 6;
    let piece = Bytes::from("data: a\n\nevent: x\ndata: b\n\n");
    let events = with_ids(&piece, &id, &mut sequence);
    assert_eq!(
        events,
        [
            "id: 3.abcdefghijklmnopqrstuv.7\ndata: a\n\n",
            "id: 3.abcdefghijklmnopqrstuv.8\nevent: x\ndata: b\n\n"
        ]
    );
    assert_eq!(sequence, 8);
    assert!(with_ids(&Bytes::new(), &id, &mut sequence).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_nobody_takes_up_is_dropped_with_its_work_and_its_bytes() {
    let streams = Streams::new(NodeId(1), config(60, 1 << 20, 1 << 20));
    let (sender, receiver) = mpsc::channel(4);
    let id = streams
        .keep(mine(), pieces(receiver), tracing::Span::none())
        .unwrap();
    sender.send("data: a\n\n".into()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert!(!sender.is_closed());
    assert_eq!(streams.counts().streams, 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(sender.is_closed(), "the work is dropped");
    let counts = streams.counts();
    assert_eq!((counts.streams, counts.bytes, counts.abandoned), (0, 0, 1));
    let lost = streams.resume(&id, 0, "me").await.unwrap_err();
    assert_eq!(lost.code, ErrorCode::NotFound);
}

#[tokio::test(start_paused = true)]
async fn an_ended_stream_is_kept_for_the_window_or_until_its_room_is_needed() {
    let streams = Streams::new(NodeId(1), config(60, 1 << 20, 4 * STREAM_BYTES));
    let one = || stream::iter([Bytes::from("data: a\n\n")]);
    let ids: Vec<_> = (0..3)
        .map(|_| streams.keep(mine(), one(), tracing::Span::none()).unwrap())
        .collect();
    settle().await;
    for id in &ids[1..] {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let ResumedStream::Events(events) = streams.resume(id, 0, "me").await.unwrap() else {
            panic!("one event is there");
        };
        assert_eq!(events.count().await, 1);
    }
    // The memory of the first stream is not reused, because its events are unread.
    streams.keep(mine(), one(), tracing::Span::none()).unwrap();
    settle().await;
    assert!(streams.resume(&ids[0], 0, "me").await.is_ok());
    assert!(streams.resume(&ids[1], 0, "me").await.is_err());
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert_eq!(streams.counts().bytes, 0);
    assert_eq!(streams.counts().abandoned, 0, "they had ended");
}

#[tokio::test(start_paused = true)]
async fn a_full_node_refuses_and_a_cancelled_stream_makes_room() {
    let streams = Streams::new(NodeId(1), config(60, 1 << 20, 2 * STREAM_BYTES));
    let quiet = || streams.keep(mine(), stream::pending(), tracing::Span::none());
    let first = quiet().unwrap();
    quiet().unwrap();
    assert_eq!(quiet().unwrap_err().code, ErrorCode::Overloaded);
    streams.cancel(&first, "me").await.unwrap();
    settle().await;
    quiet().unwrap();
    streams.drain(Duration::from_secs(1)).await;
    assert_eq!(streams.counts().streams, 0);
    assert_eq!(quiet().unwrap_err().code, ErrorCode::Overloaded);
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_its_callers_and_a_tenant_takes_no_more_than_its_share() {
    let mut config = config(60, 1 << 20, 4 * STREAM_BYTES);
    config.tenant_bytes = STREAM_BYTES;
    let streams = Streams::new(NodeId(1), config);
    let quiet = |owner| streams.keep(owner, stream::pending(), tracing::Span::none());
    let id = quiet(mine()).unwrap();
    for refused in [
        streams.resume(&id, 0, "somebody").await.map(drop),
        streams.cancel(&id, "somebody").await,
    ] {
        assert_eq!(refused.unwrap_err().code, ErrorCode::NotFound);
    }
    assert_eq!(quiet(mine()).unwrap_err().code, ErrorCode::Overloaded);
    let theirs = StreamOwner {
        tenant: TenantId::new("other").unwrap(),
        ..mine()
    };
    quiet(theirs).unwrap();
    streams.cancel(&id, "me").await.unwrap();
    settle().await;
    quiet(mine()).unwrap();
}
