"""Parts without a cluster: batches of bounded size, events from bytes, turns of coordinators."""

from __future__ import annotations

import pyarrow as pa
import pytest

from volley_client import Retry, errors
from volley_client import _command, _endpoints, _inputs, _sse


def sizes(data, size):
    return [batch.num_rows for batch in _inputs.batches(data, "text", size)]


def test_batches_have_bounded_rows_and_bytes():
    assert sizes(["x"] * 10, 4) == [4, 4, 2]
    small = [pa.record_batch({"text": ["x"] * 3})] * 5
    assert sizes(iter(small), 4) == [4, 4, 4, 3], "small batches are joined"
    large = pa.table({"text": ["y" * (3 << 20)] * 8})
    assert sizes(large, 8) == [2, 2, 2, 2], "at most 8 MiB"
    assert sizes(pa.table({"text": ["y" * (9 << 20), "z"]}), 8) == [1, 1], "a row is never split"


def test_large_and_view_types_become_plain_ones():
    kind = pa.large_list(pa.struct([("a", pa.large_string()), ("b", pa.large_binary())]))
    plain = pa.list_(pa.struct([("a", pa.string()), ("b", pa.binary())]))
    assert _inputs.plain_type(kind) == plain
    table = pa.table({"text": pa.array([[{"a": "x", "b": b"y"}]], kind)})
    (batch,) = _inputs.batches(table, "text", 4)
    assert batch.schema.field("text").type == plain and batch.to_pylist() == table.to_pylist()


def test_events_are_read_from_pieces_of_any_size():
    text = 'id: 1.a.1\ndata: {"text":"line\u2028end"}\n\n: keep-alive\n\ndata: two\ndata: lines\r\n\r\n'
    data = text.encode()
    for size in (1, 2, 7, len(data)):
        reader = _sse.EventReader()
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        events = [event for piece in pieces for event in reader.feed(piece)]
        assert events == [
            _sse.Event('{"text":"line\u2028end"}', "1.a.1"),
            _sse.Event("two\nlines", None),
        ]


def test_an_endless_event_is_rejected():
    reader = _sse.EventReader()
    with pytest.raises(ValueError, match="16 MiB"):
        for _ in range(20):
            list(reader.feed(b"x" * (1 << 20)))


def test_coordinators_take_turns_and_rest_after_a_failure():
    endpoints = _endpoints.by_transport(["grpc://a:1", "grpc://b:1", "grpc://c:1"])["flight"]
    turns = [endpoints.next() for _ in range(4)]
    assert [it.url for it in turns] == [f"grpc+tcp://{name}:1" for name in "abca"]
    endpoints.failed(turns[1])
    assert {endpoints.next().url for _ in range(6)} == {"grpc+tcp://a:1", "grpc+tcp://c:1"}
    endpoints.failed(turns[0])
    endpoints.failed(turns[2])
    assert not endpoints.has_untried() and endpoints.next() is turns[1], "the first that failed"
    endpoints.works(turns[2])
    assert endpoints.next() is turns[2]


def test_details_of_errors_are_read_and_damaged_ones_are_not():
    detail = b"\x0a\x09not_found\x10\xe8\x07\x18\x01\x22\x02id\x2a\x01r\x32\x01x"
    expected = {"code": "not_found", "retry_after_ms": 1000, "origin": 1}
    assert _command.error_detail(detail) == {**expected, "request_id": "id", "reason": "r"}
    assert _command.error_detail(b"") == {} and _command.error_detail(b"\x0a") == {}
    assert _command.error_detail(b"\x0a\x02\xff\xff") == {}


def test_every_code_of_the_reference_has_its_exception():
    from cluster import ROOT

    page = (ROOT / "docs/reference/errors.md").read_text()
    table = page.split("## Codes")[1].split("| code | cause")[0]
    codes = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert len(codes) >= 16 and set(codes) == set(errors.BY_CODE)
    for code, kind in errors.BY_CODE.items():
        error = errors.of_code(code, "message")
        assert type(error) is kind and error.code == code and str(error) == f"message ({code})"
    assert type(errors.of_code("new", "message")) is errors.VolleyError


def test_pauses_grow_and_honour_the_cluster():
    retry = Retry(attempts=5, backoff=0.1, max_backoff=1.0)
    assert [retry.pause(failures, None) for failures in (1, 2, 3, 9)] == [0.1, 0.2, 0.4, 1.0]
    assert retry.pause(1, 7.0) == 7.0
    with pytest.raises(ValueError, match="attempts"):
        Retry(attempts=0)
