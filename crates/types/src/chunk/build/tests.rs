use proptest::prelude::*;

use super::*;
use crate::chunk::{GenerationRow, PromptUsage, Usage};

fn chunk() -> impl Strategy<Value = GenerationChunk> {
    let numbers = (0..3_u32, 0..2_u32, any::<u32>(), any::<Option<u32>>());
    let texts = (
        proptest::option::of(".{0,40}"),
        proptest::option::of(".{0,4}"),
        proptest::option::of("x{0,3}"),
        proptest::option::of(proptest::collection::vec(any::<u32>(), 0..4)),
    );
    let ends = (any::<bool>(), any::<Option<f32>>(), any::<bool>());
    (numbers, texts, ends).prop_map(|(numbers, texts, ends)| GenerationChunk {
        item: numbers.0,
        choice: numbers.1,
        sequence: numbers.2,
        text: texts.0,
        thinking: texts.1.clone(),
        tool_calls: texts.2.clone(),
        token_id: numbers.3,
        logprob: ends.1.filter(|logprob| !logprob.is_nan()),
        finish_reason: ends.0.then_some(FinishReason::Length),
        usage: ends.2.then_some(Usage {
            prompt_tokens: 7,
            completion_tokens: numbers.2,
            cached_tokens: numbers.0,
            cache_write_tokens: numbers.1,
            reasoning_tokens: numbers.0,
        }),
        prompt: (!ends.2 && ends.0).then_some(PromptUsage {
            prompt_tokens: numbers.2,
            cached_tokens: numbers.0,
        }),
        error: texts.2.clone().map(|text| (text.clone(), text)),
        token_logprobs: texts.2.clone(),
        token_ids: texts.3,
        details: texts.1.clone(),
        citations: texts.2,
        last: ends.0,
    })
}

proptest! {
    #[test]
    fn a_blank_column_is_known_and_made_again(chunks in proptest::collection::vec(chunk(), 1..80)) {
        let mut rows = GenerationChunks::default();
        chunks.iter().for_each(|chunk| rows.push(chunk));
        let batch = rows.finish();
        for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
            let made = blank(field, batch.num_rows()).unwrap();
            let same = *made == **column;
            let short = batch.num_rows() <= BLANKS;
            prop_assert!(!is_blank(field, column) || same, "{}", field.name());
            prop_assert!(!(same && short) || is_blank(field, column), "{}", field.name());
        }
    }

    #[test]
    fn what_is_pushed_is_read(chunks in proptest::collection::vec(chunk(), 1..80)) {
        let mut rows = GenerationChunks::default();
        chunks.iter().for_each(|chunk| rows.push(chunk));
        prop_assert_eq!(rows.len(), chunks.len());
        let batch = rows.finish();
        prop_assert!(rows.is_empty());
        let read: Vec<_> = GenerationRow::rows(&batch).unwrap().map(|row| GenerationChunk {
            item: row.item(),
            choice: row.choice(),
            sequence: row.sequence(),
            text: row.text().map(str::to_owned),
            thinking: row.thinking().map(str::to_owned),
            tool_calls: row.tool_calls().map(str::to_owned),
            token_id: row.token_id(),
            logprob: row.logprob(),
            finish_reason: row.finish_reason(),
            usage: row.usage(),
            prompt: row.prompt().filter(|_| row.usage().is_none()),
            error: row.error().map(|(code, message)| (code.to_owned(), message.to_owned())),
            citations: row.citations().map(str::to_owned),
            last: row.last(),
            token_logprobs: row.token_logprobs().map(str::to_owned),
            token_ids: row.token_ids().map(|ids| ids.values().to_vec()),
            details: row.details().map(str::to_owned),
        }).collect();
        prop_assert_eq!(read, chunks);
    }
}
