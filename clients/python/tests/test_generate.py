"""Generated texts: whole, streamed, resumed, cancelled."""

from __future__ import annotations

import threading

import pytest

from cluster import until
from proxy import AbortingProxy
from volley_client import StreamGoneError, errors

PROMPT = "Tell me a story about a fox."
SCRIPT = {"chunks": 60, "delay_ms": 20, "text": "n{n} "}
SCRIPTED = "".join(f"n{number} " for number in range(60))


def test_a_prompt_and_a_chat_are_answered(client, transport):
    options = {"parameters": {"max_tokens": 12}, "transport": transport}
    answer = client.generate("storyteller", PROMPT, **options)
    assert answer.text and answer.finish_reason in ("stop", "length")
    assert answer.prompt_tokens > 0 and 0 < answer.completion_tokens <= 12
    chat = client.generate("storyteller", [{"role": "user", "content": PROMPT}], **options)
    assert chat.text == answer.text, "a prompt is one message of a user"
    several = client.generate(
        "storyteller", PROMPT, parameters={"max_tokens": 4, "n": 3, "seed": 5}, transport=transport
    )
    assert len(several.choices) == 3 and all(choice.text for choice in several.choices)


def test_a_stream_has_the_text_of_the_whole_answer(client, transport):
    options = {"parameters": {"max_tokens": 12}, "transport": transport}
    whole = client.generate("storyteller", PROMPT, **options)
    with client.generate_stream("storyteller", PROMPT, **options) as stream:
        chunks = list(stream)
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert len(chunks) > 2 and [chunk.last for chunk in chunks].count(True) == 1
    assert stream.id is None
    assert client.generate_stream("storyteller", PROMPT, **options).collect().text == whole.text


def test_each_row_has_its_generation(client, transport):
    prompts = [f"Tell me about animal {row}." for row in range(70)]
    rows = client.generate_rows(
        "storyteller",
        {"id": list(range(70)), "prompt": prompts},
        column="prompt",
        keep=["id"],
        parameters={"max_tokens": 3},
        transport=transport,
    ).to_pylist()
    assert [row["id"] for row in rows] == list(range(70))
    assert all(row["text"] and row["finish_reason"] for row in rows)
    assert all(row["error_code"] is None for row in rows)
    one = client.generate("storyteller", prompts[41], parameters={"max_tokens": 3})
    assert rows[41]["text"] == one.text
    with pytest.raises(ValueError, match="'n' must be 1"):
        client.generate_rows("storyteller", prompts, parameters={"n": 2})


def test_errors_before_and_after_the_first_chunk_are_typed(client, transport):
    with pytest.raises(errors.InvalidInputError, match="did you mean 'temperature'"):
        client.generate("storyteller", PROMPT, parameters={"temprature": 1}, transport=transport)
    script = {"chunks": 5, "delay_ms": 5, "fail_after": 2, "fail_code": "upstream_failed"}
    stream = client.generate_stream("drill", "x", parameters=script, transport=transport)
    assert next(stream).text and next(stream).text
    with pytest.raises(errors.UpstreamFailedError) as raised:
        list(stream)
    assert raised.value.code == "upstream_failed"
    with pytest.raises(TypeError, match="no option 'max_tokens'"):
        client.generate("storyteller", PROMPT, max_tokens=3)


def test_a_deadline_ends_a_stream(client, transport):
    script = {"chunks": 1_000, "delay_ms": 20}
    with pytest.raises(errors.DeadlineExceededError):
        client.generate("drill", "x", parameters=script, timeout=0.6, transport=transport)


@pytest.mark.parametrize("how", ["close", "from another thread", "rows"])
def test_a_cancelled_stream_stops_the_model(cluster, client, transport, how):
    until("no stream of an earlier test runs", lambda: cluster.active_streams("drill") == 0)
    options = {"parameters": {"chunks": 100_000, "delay_ms": 10}, "transport": transport}
    if how == "rows":
        stream = client.generate_rows_stream("drill", ["x"] * 8, batch_size=1, **options)
        reading = threading.Thread(target=lambda: pytest.raises(Exception, next, stream))
        reading.start()
    else:
        stream = client.generate_stream("drill", "x", **options)
        assert next(stream).text
    until("the stream runs", lambda: cluster.active_streams("drill") > 0)
    if how == "from another thread":
        ended = threading.Event()

        def read():
            with pytest.raises(errors.CancelledError):
                list(stream)
            ended.set()

        reading = threading.Thread(target=read)
        reading.start()
        until("the thread waits for a chunk", lambda: stream._running is not None)
        stream.close()
        reading.join(timeout=10)
        assert ended.is_set()
    else:
        stream.close()
    if how == "rows":
        reading.join(timeout=10)
    until("no stream runs", lambda: cluster.active_streams("drill") == 0)


def test_an_aborted_stream_continues_at_another_coordinator(cluster):
    with AbortingProxy(cluster.public[0], after=2_000, aborts=1) as proxy:
        urls = [f"http://{proxy.address}", *cluster.rest[1:]]
        with cluster.client(urls) as client:
            stream = client.generate_stream("drill", "x", resumable=True, parameters=SCRIPT)
            chunks = list(stream)
            assert proxy.aborted == 1, "the connection was aborted"
    assert "".join(chunk.text for chunk in chunks) == SCRIPTED
    ids = [chunk.event_id for chunk in chunks]
    assert len(set(ids)) == len(ids), "nothing came twice"
    assert stream.id and ids[0].startswith(stream.id)


def test_another_process_resumes_a_stream_after_an_event(cluster):
    with cluster.client(cluster.rest[:1]) as first:
        stream = first.generate_stream("drill", "x", resumable=True, parameters=SCRIPT)
        had = [next(stream).text for _ in range(7)]
        stream_id, after = stream.id, stream.last_event_id
        stream.close()
    with cluster.client(cluster.rest[1:2]) as second:
        rest = second.resume_stream(stream_id, after=after)
        assert "".join(had) + "".join(chunk.text for chunk in rest) == SCRIPTED
        whole = second.resume_stream(stream_id).collect()
        assert whole.text == SCRIPTED
        second.cancel_stream(stream_id)
        with pytest.raises(StreamGoneError):
            second.resume_stream(stream_id).collect()


def test_streams_over_flight_are_not_resumable(cluster, client):
    with pytest.raises(ValueError, match="cannot be resumed"):
        client.generate_stream("drill", "x", resumable=True, transport="flight")
    with cluster.client(cluster.flight) as flight:
        with pytest.raises(ValueError, match="needs the transport 'rest'"):
            flight.generate_stream("drill", "x", resumable=True)


def test_a_plain_stream_that_is_aborted_reports_the_lost_connection(cluster):
    with AbortingProxy(cluster.public[0], after=2_000, aborts=99) as proxy:
        with cluster.client([f"http://{proxy.address}"]) as client:
            stream = client.generate_stream("drill", "x", parameters=SCRIPT)
            with pytest.raises(errors.ConnectionLostError, match="connection"):
                list(stream)
