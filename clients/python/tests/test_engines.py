"""Models as functions of DuckDB and Polars."""

from __future__ import annotations

import duckdb
import polars
import pytest

import volley_client.duckdb
import volley_client.polars
from volley_client import errors


def test_one_call_registers_all_models_in_duckdb(cluster, client):
    con = duckdb.connect()
    names = volley_client.duckdb.register(con, client)
    assert {"text-embed", "text-rerank", "text-classify", "storyteller"} <= set(names)
    con.sql(
        "CREATE TABLE books AS SELECT * FROM (VALUES (1, 'a dog'), (2, NULL), (3, 'a cat')) t(id, title)"
    )
    found = con.sql(
        'SELECT id, "text-embed"(title), "text-rerank"(\'dog\', title) FROM books ORDER BY id'
    )
    rows = found.fetchall()
    assert [len(row[1]) if row[1] else None for row in rows] == [16, None, 16]
    assert [row[2] is None for row in rows] == [False, True, False]
    expected = client.embed("text-embed", ["a dog"])["embedding"][0].as_py()
    assert list(rows[0][1]) == pytest.approx(expected, abs=1e-5)
    volley_client.duckdb.register(con, client, {"story": "storyteller?max_tokens=3"})
    ((told,),) = con.sql("SELECT story('Once')").fetchall()
    assert told == client.generate("storyteller", "Once", parameters={"max_tokens": 3}).text


def test_duckdb_embeds_a_table_of_many_chunks(client):
    con = duckdb.connect()
    volley_client.duckdb.register(con, client, ["text-embed"])
    ((count, wrong),) = con.sql(
        """SELECT count(*), count(*) FILTER (len(v) <> 16)
           FROM (SELECT "text-embed"('row ' || i) AS v FROM range(20000) t(i))"""
    ).fetchall()
    assert (count, wrong) == (20_000, 0)


def test_polars_calls_models_as_expressions(client):
    volley_client.polars.register(client)
    frame = polars.DataFrame({"title": ["a dog", None, "a cat"], "question": ["dog"] * 3})
    found = frame.with_columns(
        polars.col("title").volley.call("text-embed").alias("vector"),
        polars.col("question").volley.call("text-rerank", "title").alias("score"),
        volley_client.polars.call(client, "text-classify", "title").alias("label"),
    )
    assert found["vector"].list.len().to_list() == [16, None, 16]
    assert found["score"].is_null().to_list() == [False, True, False]
    assert found["label"].to_list()[1] is None and found["label"].to_list()[0]
    lazy = frame.lazy().select(polars.col("title").volley.call("text-embed").list.len())
    assert lazy.collect(engine="streaming")["title"].to_list() == [16, None, 16]


def test_wrong_functions_are_rejected_by_name(cluster, client):
    con = duckdb.connect()
    with pytest.raises(errors.NotFoundError, match="nobody"):
        volley_client.duckdb.register(con, client, ["nobody"])
    with pytest.raises(errors.NotFoundError, match="nobody"):
        volley_client.polars.call(client, "nobody", "title")
    with pytest.raises(ValueError, match="arguments"):
        volley_client.polars.call(client, "text-rerank", "title")
    with cluster.client(cluster.rest) as rest:
        with pytest.raises(ValueError, match="'flight'"):
            volley_client.duckdb.register(con, rest)
