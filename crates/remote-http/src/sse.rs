//! Incremental parser with size limits for server-sent events (WHATWG HTML, §9.2.6) and lines of
//! JSON.
//!
//! Each byte is examined once, regardless of the chunks. A line or an event over the limit is an
//! immediate error, and so is invalid UTF-8, because a stream must not hang silently. Some servers
//! write an error between events as bare JSON over several lines; the parser returns it as an
//! event.

use bytes::{Buf, Bytes, BytesMut};
use volley_provider_kit::framing::Framing;

use crate::event::{EventData, MAX_EVENT_BYTES, SseError};
use crate::frames::Frames;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// Parses events from received chunks.
#[derive(Debug, Default)]
pub struct Parser {
    framing: Framing,
    bare: BareJson,
    frames: Frames,
    /// A line without its end so far.
    partial: BytesMut,
    data: Data,
    /// Whether a byte was read. A byte order mark is only valid before that.
    begun: bool,
    /// Whether the last line ended in CR. An LF that follows belongs to it.
    after_cr: bool,
}

/// The data of an unfinished event.
#[derive(Debug, Default)]
enum Data {
    #[default]
    None,
    /// A line, not copied.
    Line(Bytes),
    /// Several lines, joined.
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
    /// Creates a parser for a framing.
    pub fn new(framing: Framing) -> Self {
        Self {
            framing,
            ..Self::default()
        }
    }

    /// Reads a chunk and appends its events to `events`.
    ///
    /// # Errors
    /// [`SseError`]. The stream is unreadable after an error.
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

    /// Ends the stream. Appends a last event whose blank line is missing: the standard discards it,
    /// but some servers end with such an event.
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
        // Comments have an empty field name. The fields `event`, `id` and `retry` are not used.
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

/// Bare JSON between events, until its last bracket.
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
