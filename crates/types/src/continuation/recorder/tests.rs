use proptest::prelude::*;

use super::*;
use crate::chunk::{FinishReason, GenerationChunk, GenerationChunks};

/// A scripted answer: the number of tokens in each of its rows, and whether it fails.
#[derive(Clone, Debug)]
struct ScriptedAnswer {
    rows: Vec<usize>,
    fails: bool,
}

fn told() -> impl Strategy<Value = ScriptedAnswer> {
    let rows = proptest::collection::vec(0..4_usize, 0..8);
    (rows, any::<bool>()).prop_map(|(rows, fails)| ScriptedAnswer { rows, fails })
}

/// The numbered rows of several answers, interleaved in the order that `turns` selects.
fn stream(answers: &[ScriptedAnswer], turns: &[prop::sample::Index]) -> Vec<GenerationChunk> {
    let mut left: Vec<_> = answers.iter().map(|told| told.rows.clone()).collect();
    let mut open: Vec<usize> = (0..answers.len()).collect();
    let mut chunks = Vec::new();
    let mut turns = turns.iter().cycle();
    while !open.is_empty() {
        let turn = turns.next().map_or(0, |turn| turn.index(open.len()));
        let answer = open[turn];
        let mut chunk = GenerationChunk {
            item: answer as u32 / 2,
            choice: answer as u32 % 2,
            sequence: chunks.len() as u32,
            ..GenerationChunk::default()
        };
        if left[answer].is_empty() {
            open.remove(turn);
            chunk.last = open.is_empty();
            chunk.finish_reason = Some(FinishReason::Stop);
            if answers[answer].fails {
                chunk.finish_reason = Some(FinishReason::Error);
                chunk.error = Some(("internal".to_owned(), "it failed".to_owned()));
            } else {
                chunk.token_ids = Some(vec![2]);
            }
        } else {
            let tokens = left[answer].remove(0);
            chunk.text = Some("né".repeat(tokens));
            match tokens {
                1 => chunk.token_id = Some(7),
                _ => chunk.token_ids = Some(vec![8; tokens]),
            }
        }
        chunks.push(chunk);
    }
    chunks
}

fn batches(chunks: &[GenerationChunk], size: usize) -> impl Iterator<Item = RecordBatch> {
    chunks.chunks(size).map(|part| {
        let mut rows = GenerationChunks::default();
        part.iter().for_each(|chunk| rows.push(chunk));
        rows.finish()
    })
}

proptest! {
    /// For any split into batches and any point of loss, the recorded state equals the state
    /// computed from the rows one by one.
    #[test]
    fn wherever_a_stream_is_lost_the_ledger_says_what_its_rows_said(
        answers in proptest::collection::vec(told(), 1..5),
        turns in proptest::collection::vec(any::<prop::sample::Index>(), 1..20),
        size in 1..5_usize,
        lost in any::<prop::sample::Index>(),
    ) {
        let chunks = stream(&answers, &turns);
        let chunks = &chunks[..=lost.index(chunks.len())];
        let mut recorder = SentAnswerRecorder::default();
        for batch in batches(chunks, size) {
            prop_assert!(recorder.note(&batch));
        }
        let ended = chunks.iter().any(|chunk| chunk.last);
        let Some(sent) = recorder.sent() else {
            prop_assert!(ended, "only what has ended cannot go on");
            return Ok(());
        };
        prop_assert!(!ended);
        prop_assert_eq!(sent.rows() as usize, chunks.len());
        let begun: std::collections::BTreeSet<_> =
            chunks.iter().map(|chunk| (chunk.item, chunk.choice)).collect();
        prop_assert_eq!(sent.answers().len(), begun.len());
        for answer in sent.answers() {
            let own = || chunks.iter().filter(|chunk| (chunk.item, chunk.choice) == answer.place());
            let tokens: Vec<u32> = own()
                .flat_map(|chunk| chunk.token_id.into_iter().chain(chunk.token_ids.clone().unwrap_or_default()))
                .collect();
            prop_assert_eq!(&answer.tokens, &tokens);
            prop_assert_eq!(answer.rows as usize, own().count());
            let bytes: usize = own().map(|chunk| chunk.text.as_ref().map_or(0, String::len)).sum();
            prop_assert_eq!(answer.text_bytes, bytes as u64);
            let end = own().find(|chunk| chunk.finish_reason.is_some()).map(|chunk| match chunk.error {
                Some(_) => AnswerEnd::Failed,
                None => AnswerEnd::Whole,
            });
            prop_assert_eq!(answer.end, end);
        }
    }
}

fn row(sequence: u32, token_id: Option<u32>) -> RecordBatch {
    GenerationChunks::single(&GenerationChunk {
        sequence,
        text: Some("a".to_owned()),
        token_id,
        ..GenerationChunk::default()
    })
}

#[test]
fn rows_that_do_not_follow_are_noticed() {
    for wrong in [0, 2] {
        let mut recorder = SentAnswerRecorder::default();
        assert!(recorder.note(&row(0, Some(1))));
        assert!(
            !recorder.note(&row(wrong, Some(1))),
            "a duplicate, or a gap"
        );
        assert_eq!(recorder.sent(), None);
    }
}

#[test]
fn nobody_goes_on_with_rows_that_do_not_say_their_tokens_or_say_too_many() {
    let mut recorder = SentAnswerRecorder::default();
    assert!(recorder.note(&row(0, Some(1))) && recorder.sent().is_some());
    assert!(recorder.note(&row(1, None)));
    assert_eq!(recorder.sent(), None);
    assert!(
        recorder.note(&row(7, None)),
        "nothing is looked at any more"
    );

    let mut recorder = SentAnswerRecorder::default();
    let many = GenerationChunk {
        token_ids: Some(vec![1; MAX_TOKENS]),
        ..GenerationChunk::default()
    };
    assert!(recorder.note(&GenerationChunks::single(&many)));
    assert_eq!(recorder.tokens(), MAX_TOKENS);
    assert!(recorder.note(&row(1, Some(1))));
    assert_eq!(recorder.sent(), None);
}
