//! W3C Trace Context (<https://www.w3.org/TR/trace-context/>): the `traceparent` header.

/// The `traceparent` of a request: its trace and the parent span.
#[derive(Clone, Copy, Debug)]
pub struct TraceContext {
    /// The trace id; never zero.
    pub trace_id: u128,
    /// The parent span's id; never zero.
    pub span_id: u64,
    /// Whether the caller records this trace.
    pub sampled: bool,
    /// The parent of `span_id` if this hop created the span, 0 for a root span. `None` if the
    /// context was received from another node. Not sent, and ignored by `==`.
    pub parent_id: Option<u64>,
}

impl PartialEq for TraceContext {
    fn eq(&self, other: &Self) -> bool {
        let key = |context: &Self| (context.trace_id, context.span_id, context.sampled);
        key(self) == key(other)
    }
}

impl Eq for TraceContext {}

impl TraceContext {
    /// Parses a `traceparent` header. `None` when malformed; the caller then starts a new trace, as
    /// the specification requires.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let (version, trace, span, flags) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let lower_hex = |part: &str, len: usize| {
            part.len() == len
                && part
                    .bytes()
                    .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        };
        if !lower_hex(version, 2) || version == "ff" || (version == "00" && parts.next().is_some())
        {
            return None;
        }
        if !lower_hex(trace, 32) || !lower_hex(span, 16) || !lower_hex(flags, 2) {
            return None;
        }
        let trace_id = u128::from_str_radix(trace, 16).ok()?;
        let span_id = u64::from_str_radix(span, 16).ok()?;
        let flags = u8::from_str_radix(flags, 16).ok()?;
        (trace_id != 0 && span_id != 0).then_some(Self {
            trace_id,
            span_id,
            sampled: flags & 1 == 1,
            parent_id: None,
        })
    }

    /// A new trace with random ids, not sampled.
    #[must_use]
    pub fn random() -> Self {
        let id = uuid::Uuid::new_v4().as_u128();
        Self {
            trace_id: id,
            span_id: Self::random_span(),
            sampled: false,
            parent_id: Some(0),
        }
    }

    /// The same trace with a new span id, to send to the next hop.
    #[must_use]
    pub fn child(self) -> Self {
        Self {
            span_id: Self::random_span(),
            parent_id: Some(self.span_id),
            ..self
        }
    }

    /// The span of this hop: `self` if this hop created it, otherwise a child of it.
    #[must_use]
    pub fn entered(self) -> Self {
        match self.parent_id {
            Some(_) => self,
            None => self.child(),
        }
    }

    fn random_span() -> u64 {
        let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
        (high ^ low).max(1)
    }
}

impl std::fmt::Display for TraceContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "00-{:032x}-{:016x}-{:02x}",
            self.trace_id,
            self.span_id,
            u8::from(self.sampled)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traceparents_round_trip_and_malformed_ones_start_anew() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(TraceContext::parse(text).unwrap().to_string(), text);
        for bad in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
        ] {
            assert_eq!(TraceContext::parse(bad), None, "{bad}");
        }
    }
}
