"""Rows in and out, over both transports."""

from __future__ import annotations

import numpy
import pandas
import polars
import pyarrow as pa
import pytest

from volley_client import errors

TEXTS = ["a small crow", "the old bridge", "where is the river?"]


def vectors(rows):
    return numpy.array([row["embedding"] for row in rows.to_pylist()])


@pytest.fixture(scope="module")
def expected(cluster):
    with cluster.client() as client:
        return vectors(client.embed("text-embed", TEXTS))


def kinds():
    table = pa.table({"id": [1, 2, 3], "title": TEXTS})
    return {
        "a list": (TEXTS, None),
        "a generator": (lambda: (text for text in TEXTS), None),
        "an Arrow array": (pa.array(TEXTS), None),
        "an Arrow array of large texts": (pa.array(TEXTS, pa.large_string()), None),
        "a dictionary array": (pa.array(TEXTS).dictionary_encode(), None),
        "an Arrow table": (table, "title"),
        "a record batch": (table.to_batches()[0], "title"),
        "a reader": (lambda: table.to_reader(), "title"),
        "batches": (lambda: iter(table.to_batches(max_chunksize=1)), "title"),
        "dicts": (table.to_pylist(), "title"),
        "a dict of columns": ({"title": TEXTS}, "title"),
        "a pandas frame": (table.to_pandas(), "title"),
        "a pandas series": (pandas.Series(TEXTS), None),
        "a polars frame": (polars.DataFrame({"id": [1, 2, 3], "title": TEXTS}), "title"),
        "a polars series": (polars.Series(TEXTS), None),
    }


@pytest.mark.parametrize("kind", list(kinds()))
def test_every_kind_of_rows_is_embedded(client, transport, expected, kind):
    data, column = kinds()[kind]
    data = data() if callable(data) else data
    rows = client.embed("text-embed", data, column=column, transport=transport)
    assert numpy.allclose(vectors(rows), expected, atol=1e-5)


def test_answers_come_back_as_arrow_pandas_and_polars(client, transport):
    rows = client.embed(
        "text-embed", {"id": [7, 8, 9], "text": TEXTS}, keep=["id"], transport=transport
    )
    assert rows.columns == ["id", "embedding", "tokens"] and len(rows) == 3
    assert rows.to_arrow()["id"].to_pylist() == [7, 8, 9]
    frame = rows.to_pandas()
    assert isinstance(frame, pandas.DataFrame) and list(frame["id"]) == [7, 8, 9]
    frame = rows.to_polars()
    assert (
        isinstance(frame, polars.DataFrame) and frame["embedding"].list.len().to_list() == [16] * 3
    )
    assert pa.table(rows).equals(rows.to_arrow()), "rows are a stream for other libraries"


def test_input_type_and_parameters_reach_the_model(client, transport, expected):
    query = client.embed("text-embed", TEXTS, input_type="query", transport=transport)
    assert not numpy.allclose(vectors(query), expected, atol=1e-3), "the prefix of a query"
    short = client.embed("text-embed", TEXTS, parameters={"dimensions": 4}, transport=transport)
    assert vectors(short).shape == (3, 4)


def test_texts_are_ranked_scored_and_classified(client, transport):
    documents = ["a stone bridge", "a small crow", "the river"]
    ranked = client.rerank("text-rerank", "a bird", documents, transport=transport)
    scores = ranked["score"].to_pylist()
    assert scores == sorted(scores, reverse=True)
    assert sorted(ranked["index"].to_pylist()) == [0, 1, 2]
    best = client.rerank("text-rerank", "a bird", documents, top_n=1, transport=transport)
    assert best.to_pylist() == ranked.to_pylist()[:1]

    pairs = pa.table({"query": ["a bird"] * 3, "text": documents})
    own = client.score_stream("text-rerank", pairs, transport=transport).collect()
    by_index = dict(zip(ranked["index"].to_pylist(), scores))
    assert numpy.allclose(own["score"].to_pylist(), [by_index[it] for it in range(3)], atol=1e-5)

    (row,) = client.classify("text-classify", ["a lovely day"], transport=transport).to_pylist()
    assert set(row["labels"]) == {"good", "bad", "odd"}
    assert row["scores"] == sorted(row["scores"], reverse=True)


def test_tensors_of_numpy_and_lists_are_predicted(client, transport):
    pixels = numpy.random.default_rng(1).random((5, 8, 8), dtype="float32")
    rows = client.predict("classifier", {"pixels": pixels}, transport=transport)
    assert len(rows) == 5 and len(rows["probabilities"][0].as_py()) == 10
    flat = pa.array(pixels.reshape(5, 64).tolist(), pa.list_(pa.float32(), 64))
    again = client.predict(
        "classifier", {"id": list("abcde"), "pixels": flat}, keep=["id"], transport=transport
    )
    assert again["label"].to_pylist() == rows["label"].to_pylist()
    assert again["id"].to_pylist() == list("abcde")


def test_no_rows_have_the_columns_of_the_answer(client, transport):
    for nothing in ([], pa.table({"text": pa.array([], pa.string())}), iter(())):
        rows = client.embed("text-embed", nothing, transport=transport)
        assert len(rows) == 0 and rows.columns == ["embedding", "tokens"]


def test_a_stream_reads_no_more_than_it_needs(client, transport):
    read = 0

    def texts():
        nonlocal read
        for row in range(1_000_000):
            read += 1
            yield f"row {row}"

    with client.embed_stream(
        "text-embed", texts(), batch_size=100, concurrency=3, transport=transport
    ) as stream:
        for _ in range(4):
            assert next(stream).num_rows == 100
        # Three exchanges wait, and one batch was given out for each that came back.
        assert read <= 100 * (4 + 3)


def test_many_rows_keep_their_order(client, transport):
    count = 5_000
    rows = client.embed(
        "text-embed",
        ({"id": row, "text": "word " * (row % 7 + 1)} for row in range(count)),
        column="text",
        keep=["id"],
        batch_size=137,
        transport=transport,
    ).to_arrow()
    assert rows["id"].to_pylist() == list(range(count))
    tokens = numpy.array(rows["tokens"].to_pylist())
    by_length = [set(tokens[length::7]) for length in range(7)]
    assert all(len(found) == 1 for found in by_length), "each row has the answer to its own text"
    assert len(set().union(*by_length)) == 7


def test_a_stream_is_a_reader_for_other_libraries(client, transport):
    stream = client.embed_stream("text-embed", TEXTS * 5, batch_size=4, transport=transport)
    reader = stream.to_reader()
    assert sum(batch.num_rows for batch in reader) == 15


def test_wrong_requests_are_rejected_by_name(client, transport):
    with pytest.raises(errors.NotFoundError, match="no model 'nobody'") as raised:
        client.embed("nobody", TEXTS, transport=transport)
    assert raised.value.code == "not_found" and raised.value.request_id
    with pytest.raises(errors.InvalidInputError, match="column 'wrong'"):
        client.predict("text-embed", {"wrong": TEXTS}, transport=transport)
    with pytest.raises(errors.InvalidInputError, match="did you mean 'dimensions'"):
        client.embed("text-embed", TEXTS, parameters={"dimension": 3}, transport=transport)
    with pytest.raises(errors.InvalidInputError, match="null"):
        client.embed("text-embed", ["a", None], transport=transport)
    with pytest.raises(ValueError, match="column='id'"):
        client.embed("text-embed", {"id": [1], "title": ["x"]}, transport=transport)
    with pytest.raises(ValueError, match="'keep' names the column 'none'"):
        client.embed("text-embed", {"text": ["x"]}, keep=["none"], transport=transport)
    with pytest.raises(ValueError, match="rename"):
        client.embed("text-embed", {"text": ["x"], "tokens": [1]}, column="text", keep=True)
    with pytest.raises(TypeError, match="no option 'batchsize'"):
        client.embed("text-embed", TEXTS, batchsize=3)
    with pytest.raises(TypeError, match="put the only value into a list"):
        client.embed("text-embed", "one text")
    with pytest.raises(TypeError, match="collect"):
        client.embed("text-embed", polars.LazyFrame({"text": TEXTS}))
