use eventsource_stream::Eventsource;
use futures::StreamExt;
use proptest::prelude::*;

use super::*;

fn read(pieces: &[&[u8]]) -> Result<Vec<String>, SseError> {
    read_as(Framing::Sse, pieces)
}

fn read_as(framing: Framing, pieces: &[&[u8]]) -> Result<Vec<String>, SseError> {
    let (mut parser, mut events) = (Parser::new(framing), Vec::new());
    for piece in pieces {
        parser.push(Bytes::copy_from_slice(piece), &mut events)?;
    }
    let texts = events.iter().map(|event| event.text().map(str::to_owned));
    texts.collect()
}

fn datas(text: &[u8]) -> Vec<String> {
    read(&[text]).unwrap()
}

#[test]
fn all_line_ends_comments_names_and_a_byte_order_mark() {
    assert_eq!(
        datas(b"data: a\n\ndata:b\r\n\r\ndata:  c\r\r: ping\n\nid: 1\nretry: 2\n\n"),
        ["a", "b", " c"]
    );
    assert_eq!(datas(b"\xef\xbb\xbfdata: x\n\n"), ["x"]);
    assert_eq!(datas(b"data: one\ndata: two\ndata\n\n"), ["one\ntwo\n"]);
    let named = datas(b"event: message_stop\ndata: {}\n\ndatax: y\ndata: n\n\n");
    assert_eq!(named, ["{}", "n"]);
}

#[test]
fn what_is_too_long_or_no_text_is_an_error_at_once() {
    let (mut parser, mut events) = (Parser::default(), Vec::new());
    let piece = Bytes::from(vec![b'x'; 64 << 10]);
    let mut pushed = 0;
    while parser.push(piece.clone(), &mut events).is_ok() {
        pushed += piece.len();
        assert!(pushed <= MAX_EVENT_BYTES, "the limit holds");
    }
    let many = b"data: 0123456789\n".repeat(MAX_EVENT_BYTES / 8);
    assert_eq!(read(&[&many]), Err(SseError::TooLong));
    assert_eq!(read(&[b"data: \xff\n\n"]), Err(SseError::NotText));
}

#[test]
fn the_last_event_may_lack_its_blank_line() {
    let (mut parser, mut events) = (Parser::default(), Vec::new());
    parser
        .push(Bytes::from_static(b"data: [DONE]"), &mut events)
        .unwrap();
    assert!(events.is_empty());
    parser.finish(&mut events).unwrap();
    assert_eq!(events[0].text(), Ok("[DONE]"));
}

#[test]
fn lines_of_json_are_events() {
    let text = b"\xef\xbb\xbf{\"a\":1}\r\n\n  \n{\"b\":\"\\n\"}\n{\"c\"";
    let datas = read_as(Framing::Lines, &[text]).unwrap();
    assert_eq!(
        datas,
        ["{\"a\":1}", "{\"b\":\"\\n\"}"],
        "the last has no end yet"
    );
}

#[test]
fn bare_json_among_events_is_one_event() {
    let error = "[{\n  \"error\": {\n    \"message\": \"a \\\" }{\"\n\n  }\n}]\n";
    let text = format!("data: a\n\n{error}data: b\n\n");
    let events = datas(text.as_bytes());
    assert_eq!(events.len(), 3);
    let bare: serde_json::Value = serde_json::from_str(&events[1]).unwrap();
    assert_eq!(bare[0]["error"]["message"], "a \" }{");
    assert_eq!(
        datas(b"{junk\ndata: a\n\n"),
        ["a"],
        "junk swallows no event"
    );
}

#[test]
fn a_huge_event_in_small_reads_takes_time_in_proportion() {
    let text = format!("data: {}\n\n", "x".repeat(8 << 20));
    let (mut parser, mut events) = (Parser::default(), Vec::new());
    let started = std::time::Instant::now();
    let mut rest = Bytes::from(text);
    while !rest.is_empty() {
        let piece = rest.split_to(rest.len().min(1_460));
        parser.push(piece, &mut events).unwrap();
    }
    let took = started.elapsed();
    eprintln!("8 MiB in reads of 1460 bytes: {took:?}");
    assert_eq!(events[0].0.len(), 8 << 20);
    // A parser that examines bytes repeatedly takes many times as long, even in a debug build.
    assert!(took < std::time::Duration::from_secs(10), "{took:?}");
}

fn cut<'a>(text: &'a [u8], places: &[usize]) -> Vec<&'a [u8]> {
    let mut places: Vec<_> = places
        .iter()
        .map(|place| place % (text.len() + 1))
        .collect();
    places.sort_unstable();
    let mut pieces = Vec::new();
    let mut from = 0;
    for place in places {
        pieces.push(&text[from..place]);
        from = place;
    }
    pieces.push(&text[from..]);
    pieces
}

proptest! {
    #[test]
    fn wherever_it_is_cut_it_reads_the_same_as_the_judge(
        lines in proptest::collection::vec("(data|event|id|):? ?[a-zäß🦊:]{0,6}", 0..20),
        ends in proptest::collection::vec(prop_oneof![Just("\n"), Just("\r\n"), Just("\n\n")], 20),
        places in proptest::collection::vec(any::<usize>(), 0..8),
    ) {
        let text: String = lines.iter().zip(&ends).map(|(line, end)| format!("{line}{end}")).collect();
        let whole = read(&[text.as_bytes()]).unwrap();
        prop_assert_eq!(&read(&cut(text.as_bytes(), &places)).unwrap(), &whole);
        let judge = futures::stream::iter([Ok::<_, std::io::Error>(text.clone())]).eventsource();
        let judged = futures::executor::block_on(judge.map(|event| event.unwrap().data).collect::<Vec<_>>());
        let filled = |datas: Vec<String>| datas.into_iter().filter(|data| !data.is_empty()).collect::<Vec<_>>();
        prop_assert_eq!(filled(whole), filled(judged));
    }

    #[test]
    fn any_bytes_are_survived_and_cuts_do_not_matter(
        bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'\n'), Just(b'\r'), Just(b':')], 0..200),
        places in proptest::collection::vec(any::<usize>(), 0..8),
    ) {
        prop_assert_eq!(read(&cut(&bytes, &places)), read(&[&bytes]));
    }
}
