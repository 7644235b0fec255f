//! What a stream promises its reader, checked chunk by chunk: the text comes whole and in order,
//! and ends in its end or in one error; it never just stops.

use std::time::Duration;

use volley_client::ClientError;

/// How a stream ended for its reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Whole, every byte as it should be.
    Whole,
    /// Refused or failed before the first chunk.
    NotBegun(String),
    /// An error after some chunks, all of them right; so long after the last one.
    Failed(String, Duration),
    /// The connection to the coordinator broke after some chunks, all of them right.
    Cut,
    /// A promise was broken; how.
    Violated(String),
}

/// Follows one stream whose whole text is known.
#[derive(Clone, Debug)]
pub struct Reader {
    expected: String,
    read: usize,
    last: Duration,
}

impl Reader {
    /// A reader who expects `expected`; `now` is since the run began.
    #[must_use]
    pub fn new(expected: String, now: Duration) -> Self {
        Self {
            expected,
            read: 0,
            last: now,
        }
    }

    /// Takes the next text.
    ///
    /// # Errors
    /// The violation, when it is not what should come next.
    pub fn text(&mut self, text: &str, now: Duration) -> Result<(), Ending> {
        if !self.expected[self.read..].starts_with(text) {
            return Err(Ending::Violated(format!(
                "after {} bytes came {text:?}",
                self.read
            )));
        }
        self.read += text.len();
        self.last = now;
        Ok(())
    }

    /// Takes the end.
    #[must_use]
    pub fn end(&self, error: Option<&ClientError>, now: Duration) -> Ending {
        let whole = self.read == self.expected.len();
        match error {
            None if whole => Ending::Whole,
            None => Ending::Violated(format!(
                "a silent end after {} of {} bytes",
                self.read,
                self.expected.len()
            )),
            Some(error) if self.read == 0 => Ending::NotBegun(code(error)),
            Some(ClientError::Broken(_)) => Ending::Cut,
            Some(ClientError::Incomplete) => Ending::Violated(format!(
                "an end without a last event after {} bytes",
                self.read
            )),
            Some(error) => Ending::Failed(code(error), now.saturating_sub(self.last)),
        }
    }
}

/// The error's stable name.
#[must_use]
pub fn code(error: &ClientError) -> String {
    match error {
        ClientError::Refused { code, .. } if !code.is_empty() => code.clone(),
        ClientError::Refused { status, .. } => format!("status {status}"),
        ClientError::Connect(..) => "not connected".to_owned(),
        ClientError::Broken(_) => "connection broken".to_owned(),
        ClientError::Timeout => "no answer".to_owned(),
        ClientError::Incomplete => "incomplete".to_owned(),
        _ => "client".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> ClientError {
        ClientError::Refused {
            status: 503,
            code: "unavailable".to_owned(),
            reason: String::new(),
            retry_after: None,
        }
    }

    #[test]
    fn every_ending_is_told_apart() {
        let at = Duration::from_millis;
        let reader = |texts: &[&str]| {
            let mut reader = Reader::new("n0 n1 n2 ".to_owned(), at(0));
            for text in texts {
                reader.text(text, at(10))?;
            }
            Ok(reader)
        };
        let end = |texts: &[&str], error: Option<&ClientError>| match reader(texts) {
            Ok(reader) => reader.end(error, at(35)),
            Err(ending) => ending,
        };
        assert_eq!(end(&["n0 ", "n1 n2 "], None), Ending::Whole);
        let unavailable = "unavailable".to_owned();
        assert_eq!(
            end(&[], Some(&refused())),
            Ending::NotBegun(unavailable.clone())
        );
        assert_eq!(
            end(&["n0 "], Some(&refused())),
            Ending::Failed(unavailable, at(25))
        );
        for (texts, error) in [
            (&["n0 "][..], None),
            (&["n0 ", "n2 "], None),
            (&["n0 ", "n0 "], None),
            (&["n0 ", "n1 ", "n2 ", "n3 "], None),
            (&["n0 "], Some(&ClientError::Incomplete)),
        ] {
            assert!(
                matches!(end(texts, error), Ending::Violated(_)),
                "{texts:?}"
            );
        }
    }
}
