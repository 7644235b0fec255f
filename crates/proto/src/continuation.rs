//! Conversions of continuations: `Continuation` ⇄ [`volley_types::continuation`].

use volley_types::{AnswerEnd, Continuation, PredictError, SentAnswer, SentAnswers};

use crate::predict::v1 as wire;

/// Converts a continuation to the wire; `None` if it is empty.
#[must_use]
pub fn to_wire(continuation: &Continuation) -> Option<wire::Continuation> {
    let said = continuation.seed.is_some() || continuation.sent.is_some();
    said.then(|| wire::Continuation {
        seed: continuation.seed,
        sent: continuation.sent.as_ref().map(|sent| wire::SentStream {
            answers: sent.answers().iter().map(answer_to_wire).collect(),
        }),
    })
}

fn answer_to_wire(answer: &SentAnswer) -> wire::SentAnswer {
    let end = match answer.end {
        None => wire::AnswerEnd::Unspecified,
        Some(AnswerEnd::Whole) => wire::AnswerEnd::Whole,
        Some(AnswerEnd::Failed) => wire::AnswerEnd::Failed,
    };
    wire::SentAnswer {
        item: answer.item,
        choice: answer.choice,
        tokens: answer.tokens.clone(),
        rows: answer.rows,
        text_bytes: answer.text_bytes,
        end: end.into(),
    }
}

/// Converts a continuation from the wire. `None` is an empty continuation.
///
/// # Errors
/// The errors of [`SentAnswers::new`], and `InvalidInput` for an unknown end of an answer.
pub fn from_wire(message: Option<wire::Continuation>) -> Result<Continuation, PredictError> {
    let Some(message) = message else {
        return Ok(Continuation::default());
    };
    let sent = message.sent.map(|sent| {
        let answers = sent.answers.into_iter().map(answer_from_wire);
        SentAnswers::new(answers.collect::<Result<_, _>>()?)
    });
    Ok(Continuation {
        seed: message.seed,
        sent: sent.transpose()?.map(Into::into),
    })
}

fn answer_from_wire(answer: wire::SentAnswer) -> Result<SentAnswer, PredictError> {
    let end = match wire::AnswerEnd::try_from(answer.end) {
        Ok(wire::AnswerEnd::Unspecified) => None,
        Ok(wire::AnswerEnd::Whole) => Some(AnswerEnd::Whole),
        Ok(wire::AnswerEnd::Failed) => Some(AnswerEnd::Failed),
        Err(_) => {
            return Err(PredictError::invalid(
                "an answer's end must be 0 (continues), 1 (complete) or 2 (failed)",
            ));
        }
    };
    Ok(SentAnswer {
        item: answer.item,
        choice: answer.choice,
        tokens: answer.tokens,
        rows: answer.rows,
        text_bytes: answer.text_bytes,
        end,
    })
}

#[cfg(test)]
mod tests {
    use volley_types::ErrorCode;

    use super::*;

    #[test]
    fn what_was_sent_travels_and_what_is_malformed_is_refused() {
        let answer = |choice, end| SentAnswer {
            item: 3,
            choice,
            tokens: vec![0, 7, u32::MAX],
            rows: 9,
            text_bytes: 12,
            end,
        };
        let answers = vec![
            answer(0, None),
            answer(1, Some(AnswerEnd::Whole)),
            answer(2, Some(AnswerEnd::Failed)),
        ];
        let sent = SentAnswers::new(answers).unwrap();
        let begun = Continuation::beginning(u64::MAX);
        for continuation in [begun.behind(sent), begun, Continuation::default()] {
            assert_eq!(from_wire(to_wire(&continuation)).unwrap(), continuation);
        }
        assert_eq!(to_wire(&Continuation::default()), None);
        for answers in [
            vec![answer_to_wire(&answer(0, None)); 2],
            vec![wire::SentAnswer {
                end: 3,
                ..wire::SentAnswer::default()
            }],
        ] {
            let bad = wire::Continuation {
                seed: None,
                sent: Some(wire::SentStream { answers }),
            };
            let error = from_wire(Some(bad)).unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidInput);
        }
    }
}
