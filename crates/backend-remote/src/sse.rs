//! Server-sent events (WHATWG HTML, §9.2.6), and JSON by lines, read incrementally and within
//! limits.
//!
//! Each byte is looked at once, wherever the network cuts it. A line or an event over the limit
//! is an error at once, and so is text that is no UTF-8: a stream must not go mute over it. Some
//! servers write an error among their events as bare JSON, over several lines; it is an event.

use bytes::{Buf, Bytes, BytesMut};

use crate::frames::Frames;

/// The longest line, and the most data of one event, in bytes.
/// What comes of one still fits into a message between nodes, which holds 16 MiB.
pub(crate) const MAX_EVENT_BYTES: usize = 12 << 20;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// How a stream is cut into events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Server-sent events.
    #[default]
    Sse,
    /// Each line that is not blank is one.
    Lines,
    /// Amazon's binary frames.
    Frames,
}

/// The data of one event: the values of its `data` fields, joined by line feeds. Where it came in
/// one piece it is a part of that piece, and not copied. Names of events say nothing that the data
/// of the formats does not, and are passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event(pub(crate) Bytes);

impl Event {
    /// The data as text.
    ///
    /// # Errors
    /// [`SseError::NotText`].
    pub(crate) fn text(&self) -> Result<&str, SseError> {
        std::str::from_utf8(&self.0).map_err(|_| SseError::NotText)
    }
}

/// Why a stream cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SseError {
    /// A line or an event is over the limit.
    TooLong,
    /// An event is no UTF-8.
    NotText,
    /// A frame's checksum does not fit, or its headers are none.
    Damaged,
}

/// Reads events out of bytes that come in pieces.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    framing: Framing,
    bare: Bare,
    frames: Frames,
    /// A line whose end has not come yet.
    partial: BytesMut,
    data: Data,
    /// Something of the stream was read, so a byte order mark can no longer come.
    begun: bool,
    /// The last line ended in CR: an LF that follows belongs to it.
    after_cr: bool,
}

/// The data of an event that has not ended.
#[derive(Debug, Default)]
enum Data {
    #[default]
    None,
    /// One line, where it came.
    Line(Bytes),
    /// Several, joined.
    Lines(BytesMut),
}

impl Data {
    fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Line(line) => line.len(),
            Self::Lines(lines) => lines.len(),
        }
    }

    fn add(&mut self, value: Bytes) {
        *self = match std::mem::take(self) {
            Self::None => Self::Line(value),
            Self::Line(line) => {
                let mut lines = BytesMut::with_capacity(line.len() + value.len() + 1);
                lines.extend_from_slice(&line);
                lines.extend_from_slice(b"\n");
                lines.extend_from_slice(&value);
                Self::Lines(lines)
            }
            Self::Lines(mut lines) => {
                lines.extend_from_slice(b"\n");
                lines.extend_from_slice(&value);
                Self::Lines(lines)
            }
        };
    }
}

impl Parser {
    pub(crate) fn new(framing: Framing) -> Self {
        Self {
            framing,
            ..Self::default()
        }
    }

    /// Reads one piece and appends its events.
    ///
    /// # Errors
    /// [`SseError`]; the stream is of no use after it.
    pub(crate) fn push(
        &mut self,
        mut piece: Bytes,
        events: &mut Vec<Event>,
    ) -> Result<(), SseError> {
        if self.framing == Framing::Frames {
            return self.frames.push(&piece, events);
        }
        while !piece.is_empty() {
            if std::mem::take(&mut self.after_cr) && piece[0] == b'\n' {
                piece.advance(1);
                continue;
            }
            let Some(end) = memchr::memchr2(b'\n', b'\r', &piece) else {
                return self.hold(&piece);
            };
            self.after_cr = piece[end] == b'\r';
            let line = piece.split_to(end);
            piece.advance(1);
            if self.partial.is_empty() {
                self.line(line, events)?;
            } else {
                self.hold(&line)?;
                let line = self.partial.split().freeze();
                self.line(line, events)?;
            }
        }
        Ok(())
    }

    /// The end of the stream: a last event whose blank line is missing, as sloppy servers leave
    /// it. The standard drops it; a terminator in it is worth having.
    ///
    /// # Errors
    /// [`SseError`].
    pub(crate) fn finish(&mut self, events: &mut Vec<Event>) -> Result<(), SseError> {
        if !self.partial.is_empty() {
            let line = self.partial.split().freeze();
            self.line(line, events)?;
        }
        self.dispatch(events);
        Ok(())
    }

    fn hold(&mut self, bytes: &[u8]) -> Result<(), SseError> {
        if MAX_EVENT_BYTES < self.partial.len() + bytes.len() {
            return Err(SseError::TooLong);
        }
        self.partial.extend_from_slice(bytes);
        Ok(())
    }

    fn line(&mut self, mut line: Bytes, events: &mut Vec<Event>) -> Result<(), SseError> {
        if !self.begun && line.starts_with(BOM) {
            line.advance(BOM.len());
        }
        self.begun = true;
        if self.framing == Framing::Lines {
            if !line.trim_ascii().is_empty() {
                events.push(Event(line));
            }
            return Ok(());
        }
        let opens = matches!(line.first(), Some(b'{' | b'['));
        if (self.bare.is_open() || opens) && !line.starts_with(b"data:") {
            events.extend(self.bare.take(&line)?);
            return Ok(());
        }
        if self.bare.is_open() {
            self.bare = Bare::default();
        }
        if line.is_empty() {
            self.dispatch(events);
            return Ok(());
        }
        // Comments have an empty field name; names, ids and retry times mean nothing here.
        let value = match line.strip_prefix(b"data") {
            Some(b"") => line.split_off(line.len()),
            Some([b':', b' ', ..]) => line.split_off(b"data: ".len()),
            Some([b':', ..]) => line.split_off(b"data:".len()),
            _ => return Ok(()),
        };
        if MAX_EVENT_BYTES < self.data.len() + value.len() + 1 {
            return Err(SseError::TooLong);
        }
        self.data.add(value);
        Ok(())
    }

    fn dispatch(&mut self, events: &mut Vec<Event>) {
        match std::mem::take(&mut self.data) {
            Data::None => {}
            Data::Line(line) => events.push(Event(line)),
            Data::Lines(lines) => events.push(Event(lines.freeze())),
        }
    }
}

/// JSON among the events that is none of them, until its last bracket.
#[derive(Debug, Default)]
struct Bare {
    text: BytesMut,
    depth: usize,
    in_string: bool,
    after_escape: bool,
}

impl Bare {
    fn is_open(&self) -> bool {
        self.depth != 0
    }

    fn take(&mut self, line: &[u8]) -> Result<Option<Event>, SseError> {
        if MAX_EVENT_BYTES < self.text.len() + line.len() {
            return Err(SseError::TooLong);
        }
        self.text.extend_from_slice(line);
        for byte in line {
            match (self.in_string, std::mem::take(&mut self.after_escape), byte) {
                (true, true, _) => {}
                (true, false, b'\\') => self.after_escape = true,
                (_, _, b'"') => self.in_string = !self.in_string,
                (false, _, b'{' | b'[') => self.depth += 1,
                (false, _, b'}' | b']') => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
        if self.is_open() {
            return Ok(None);
        }
        let text = std::mem::take(self).text;
        Ok(Some(Event(text.freeze())))
    }
}

#[cfg(test)]
mod tests {
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
        // A parser that looks at bytes again takes many times as long, even in a debug build.
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
}
