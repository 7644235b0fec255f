use futures::StreamExt;

use super::*;

#[test]
fn rows_read_back_what_was_pushed() {
    let chunk = GenerationChunk {
        item: 1,
        choice: 2,
        sequence: 3,
        text: Some("né".into()),
        token_id: Some(7),
        logprob: Some(-0.5),
        finish_reason: Some(FinishReason::Length),
        usage: Some(Usage {
            prompt_tokens: 4,
            completion_tokens: 5,
            cached_tokens: 3,
            cache_write_tokens: 1,
            reasoning_tokens: 2,
        }),
        error: Some(("invalid_input".into(), "too long".into())),
        citations: Some("[{}]".into()),
        last: true,
        token_logprobs: Some("[]".into()),
        token_ids: Some(vec![7, 8]),
        details: Some("{}".into()),
        ..GenerationChunk::default()
    };
    let batch = GenerationChunks::single(&chunk);
    let row = GenerationRow::rows(&batch).unwrap().next().unwrap();
    assert_eq!((row.item(), row.choice(), row.sequence()), (1, 2, 3));
    assert_eq!(
        (row.text(), row.thinking(), row.tool_calls()),
        (Some("né"), None, None)
    );
    assert_eq!((row.token_id(), row.logprob()), (Some(7), Some(-0.5)));
    assert_eq!(
        (row.finish_reason(), row.usage()),
        (chunk.finish_reason, chunk.usage)
    );
    assert_eq!(row.error(), Some(("invalid_input", "too long")));
    assert_eq!((row.citations(), row.last()), (Some("[{}]"), true));
    assert_eq!(row.token_logprobs(), Some("[]"));
    assert_eq!(row.token_ids().unwrap().values(), &[7, 8]);
    assert_eq!(row.details(), Some("{}"));
    let before = batch.project(&(0..17).collect::<Vec<_>>()).unwrap();
    let row = GenerationRow::rows(&before).unwrap().next().unwrap();
    assert!(row.last() && row.token_ids().is_none() && row.details().is_none());
    let usage = row.usage().unwrap();
    assert_eq!((usage.cached_tokens, usage.reasoning_tokens), (3, 0));
}

#[test]
fn nothing_follows_an_error_and_guards_fall_with_the_stream() {
    let batch = GenerationChunks::single(&GenerationChunk::default());
    let items = vec![
        Ok(batch.clone()),
        Err(PredictError::invalid("x")),
        Ok(batch),
    ];
    let held = Arc::new(());
    let stream =
        ChunkStream::new(generation_schema(), futures::stream::iter(items)).holding(held.clone());
    assert_eq!(Arc::strong_count(&held), 2);
    let seen: Vec<_> = futures::executor::block_on(stream.collect());
    assert_eq!(seen.len(), 2);
    assert!(seen[1].is_err());
    assert_eq!(Arc::strong_count(&held), 1);
}

#[test]
fn what_a_first_row_says_of_its_prompt_is_counted_once() {
    let mut rows = GenerationChunks::default();
    let prompt = PromptUsage {
        prompt_tokens: 7,
        cached_tokens: 2,
    };
    rows.push(&GenerationChunk {
        text: Some("a".into()),
        prompt: Some(prompt),
        ..GenerationChunk::default()
    });
    let usage = Usage {
        prompt_tokens: 7,
        completion_tokens: 3,
        cached_tokens: 2,
        ..Usage::default()
    };
    rows.push(&GenerationChunk {
        usage: Some(usage),
        last: true,
        ..GenerationChunk::default()
    });
    let batch = rows.finish();
    let read: Vec<_> = GenerationRow::rows(&batch)
        .unwrap()
        .map(|row| (row.prompt(), row.usage()))
        .collect();
    assert_eq!(read, [(Some(prompt), None), (Some(prompt), Some(usage))]);
    assert_eq!(usage_of(&batch), Some(usage));
    assert_eq!(usage_of(&batch.slice(0, 1)), None);
}
