//! AWS event streams (`application/vnd.amazon.eventstream`): binary frames, each with its length
//! and two checksums.
//!
//! A frame becomes an event with the JSON union of the API reference: `{"contentBlockDelta": {…}}`,
//! `{"throttlingException": {…}}`, or `{"error": {…}}` for an unmodeled error.

use aws_smithy_eventstream::frame::read_message_from;
use aws_smithy_types::event_stream::Message;
use bytes::{Bytes, BytesMut};
use serde_json::json;

use crate::event::{EventData, MAX_EVENT_BYTES, SseError};

/// The size of a frame without headers and payload, in bytes.
const EMPTY_FRAME_BYTES: usize = 16;

/// Splits received bytes into frames.
#[derive(Debug, Default)]
pub struct Frames {
    held: BytesMut,
}

impl Frames {
    /// Reads a chunk and appends its events to `events`.
    ///
    /// # Errors
    /// [`SseError`]. The stream is unreadable after an error.
    pub fn push(&mut self, piece: &[u8], events: &mut Vec<EventData>) -> Result<(), SseError> {
        self.held.extend_from_slice(piece);
        while let Some(length) = self.held.first_chunk() {
            let length = u32::from_be_bytes(*length) as usize;
            if MAX_EVENT_BYTES < length {
                return Err(SseError::TooLong);
            }
            if length < EMPTY_FRAME_BYTES {
                return Err(SseError::Damaged);
            }
            if self.held.len() < length {
                break;
            }
            let frame = self.held.split_to(length).freeze();
            let message = read_message_from(frame).map_err(|_| SseError::Damaged)?;
            events.push(event(&message)?);
        }
        Ok(())
    }
}

/// A text header of a message.
fn header<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    let mut headers = message.headers().iter();
    let header = headers.find(|header| header.name().as_str() == name)?;
    header.value().as_string().ok().map(|text| text.as_str())
}

fn event(message: &Message) -> Result<EventData, SseError> {
    let kind = match header(message, ":message-type") {
        Some("exception") => header(message, ":exception-type"),
        Some("error") => {
            let code = header(message, ":error-code");
            let text = header(message, ":error-message");
            let data = json!({ "error": { "code": code, "message": text.or(code) } });
            return Ok(EventData(data.to_string().into()));
        }
        _ => header(message, ":event-type"),
    };
    let kind = kind.filter(|kind| kind.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    union(kind.ok_or(SseError::Damaged)?, message.payload())
}

fn union(name: &str, payload: &Bytes) -> Result<EventData, SseError> {
    let payload = std::str::from_utf8(payload).map_err(|_| SseError::NotText)?;
    let payload = match payload.trim_ascii() {
        "" => "{}",
        payload => payload,
    };
    Ok(EventData(format!("{{\"{name}\":{payload}}}").into()))
}

#[cfg(test)]
mod tests {
    use aws_smithy_eventstream::frame::write_message_to;
    use aws_smithy_types::event_stream::{Header, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    fn frame(headers: &[(&'static str, &'static str)], payload: &str) -> Vec<u8> {
        let message = headers.iter().fold(
            Message::new(payload.as_bytes().to_vec()),
            |message, (name, value)| {
                message.add_header(Header::new(*name, HeaderValue::String((*value).into())))
            },
        );
        let mut bytes = Vec::new();
        write_message_to(&message, &mut bytes).unwrap();
        bytes
    }

    fn delta() -> Vec<u8> {
        let headers = [
            (":message-type", "event"),
            (":event-type", "contentBlockDelta"),
            (":content-type", "application/json"),
        ];
        frame(&headers, "{\"delta\":{\"text\":\"Grüße\"}}")
    }

    fn read(pieces: &[&[u8]]) -> Result<Vec<String>, SseError> {
        let (mut frames, mut events) = (Frames::default(), Vec::new());
        for piece in pieces {
            frames.push(piece, &mut events)?;
        }
        let texts = events.iter().map(|event| event.text().map(str::to_owned));
        texts.collect()
    }

    #[test]
    fn a_frame_is_laid_out_as_the_format_says() {
        // A hand-written frame: header `a: b` as text, payload `hi`, checksums with the common
        // CRC-32.
        let mut bytes = vec![0, 0, 0, 24, 0, 0, 0, 6];
        bytes.extend_from_slice(&crc32(&bytes).to_be_bytes());
        bytes.extend_from_slice(&[1, b'a', 7, 0, 1, b'b']);
        bytes.extend_from_slice(b"hi");
        bytes.extend_from_slice(&crc32(&bytes).to_be_bytes());
        assert_eq!(frame(&[("a", "b")], "hi"), bytes);
    }

    /// The CRC-32 of zlib, bitwise.
    fn crc32(bytes: &[u8]) -> u32 {
        let step = |crc: u32| (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg());
        !bytes.iter().fold(u32::MAX, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc))
        })
    }

    #[test]
    fn events_exceptions_and_errors_are_members_of_a_union() {
        let exception = [
            (":message-type", "exception"),
            (":exception-type", "throttlingException"),
        ];
        let error = [
            (":message-type", "error"),
            (":error-code", "InternalError"),
            (":error-message", "it \"broke\""),
        ];
        let bytes = [
            delta(),
            frame(&exception, "{\"message\":\"slow\"}"),
            frame(&error, ""),
            frame(&[(":event-type", "ping")], " "),
        ];
        let expected = [
            "{\"contentBlockDelta\":{\"delta\":{\"text\":\"Grüße\"}}}",
            "{\"throttlingException\":{\"message\":\"slow\"}}",
            "{\"error\":{\"code\":\"InternalError\",\"message\":\"it \\\"broke\\\"\"}}",
            "{\"ping\":{}}",
        ];
        assert_eq!(read(&[&bytes.concat()]).unwrap(), expected);
    }

    #[test]
    fn a_changed_byte_is_an_error_and_so_are_lengths_that_cannot_be() {
        let good = delta();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            // A larger length makes the reader wait, but never yields an event.
            let read = read(&[&bad]);
            assert!(read.is_err() || (at < 4 && read == Ok(vec![])), "at {at}");
        }
        assert_eq!(read(&[&[0, 0, 0, 15]]), Err(SseError::Damaged));
        assert_eq!(read(&[&[0xff; 4]]), Err(SseError::TooLong));
        let nameless = frame(&[(":event-type", "a\":1")], "{}");
        assert_eq!(read(&[&nameless]), Err(SseError::Damaged));
    }

    proptest! {
        #[test]
        fn wherever_frames_are_cut_they_read_the_same(
            count in 1..4_usize,
            places in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let bytes = delta().repeat(count);
            let mut places: Vec<_> = places.iter().map(|place| place.index(bytes.len())).collect();
            places.sort_unstable();
            let starts = std::iter::once(0).chain(places.iter().copied());
            let ends = places.iter().copied().chain([bytes.len()]);
            let pieces: Vec<_> = starts.zip(ends).map(|(from, to)| &bytes[from..to]).collect();
            prop_assert_eq!(read(&pieces).unwrap().len(), count);
        }

        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200), length in 0..64_u8) {
            let _ = read(&[&bytes]);
            let _ = read(&[&[0, 0, 0, length], &bytes]);
        }
    }
}
