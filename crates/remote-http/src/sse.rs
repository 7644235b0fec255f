//! Server-sent events (WHATWG HTML, §9.2.6), and JSON by lines, read incrementally and within
//! limits.
//!
//! Each byte is looked at once, wherever the network cuts it. A line or an event over the limit
//! is an error at once, and so is text that is no UTF-8: a stream must not go mute over it. Some
//! servers write an error among their events as bare JSON, over several lines; it is an event.

use bytes::{Buf, Bytes, BytesMut};
use volley_provider_kit::framing::Framing;

use crate::event::{EventData, MAX_EVENT_BYTES, SseError};
use crate::frames::Frames;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// Reads events out of bytes that come in pieces.
#[derive(Debug, Default)]
pub struct Parser {
    framing: Framing,
    bare: BareJson,
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
    /// A parser for streams that are cut in that way.
    pub fn new(framing: Framing) -> Self {
        Self {
            framing,
            ..Self::default()
        }
    }

    /// Reads one piece and appends its events.
    ///
    /// # Errors
    /// [`SseError`]; the stream is of no use after it.
    pub fn push(&mut self, mut piece: Bytes, events: &mut Vec<EventData>) -> Result<(), SseError> {
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
    pub fn finish(&mut self, events: &mut Vec<EventData>) -> Result<(), SseError> {
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

    fn line(&mut self, mut line: Bytes, events: &mut Vec<EventData>) -> Result<(), SseError> {
        if !self.begun && line.starts_with(BOM) {
            line.advance(BOM.len());
        }
        self.begun = true;
        if self.framing == Framing::Lines {
            if !line.trim_ascii().is_empty() {
                events.push(EventData(line));
            }
            return Ok(());
        }
        let opens = matches!(line.first(), Some(b'{' | b'['));
        if (self.bare.is_open() || opens) && !line.starts_with(b"data:") {
            events.extend(self.bare.take(&line)?);
            return Ok(());
        }
        if self.bare.is_open() {
            self.bare = BareJson::default();
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

    fn dispatch(&mut self, events: &mut Vec<EventData>) {
        match std::mem::take(&mut self.data) {
            Data::None => {}
            Data::Line(line) => events.push(EventData(line)),
            Data::Lines(lines) => events.push(EventData(lines.freeze())),
        }
    }
}

/// JSON among the events that is none of them, until its last bracket.
#[derive(Debug, Default)]
struct BareJson {
    text: BytesMut,
    depth: usize,
    in_string: bool,
    after_escape: bool,
}

impl BareJson {
    fn is_open(&self) -> bool {
        self.depth != 0
    }

    fn take(&mut self, line: &[u8]) -> Result<Option<EventData>, SseError> {
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
        Ok(Some(EventData(text.freeze())))
    }
}

#[cfg(test)]
mod tests;
