"""What Spark and Ray Data call in their workers. scripts/bench-spark.sh runs both engines."""

from __future__ import annotations

import pyarrow as pa
import pytest

import volley_client.ray
import volley_client.spark


def part(rows):
    columns = {"id": list(rows), "text": [f"row {row}" for row in rows]}
    return pa.record_batch(columns, pa.schema([("id", pa.int64()), ("text", pa.string())]))


def test_a_partition_of_spark_is_streamed(cluster):
    options = {"column": "text", "keep": ["id"], "batch_size": 300}
    work = volley_client.spark.partition("embed_stream", cluster.urls, "text-embed", {}, options)
    answers = pa.Table.from_batches(work(iter([part(range(500)), part(range(500, 800))])))
    assert answers["id"].to_pylist() == list(range(800))
    assert answers.schema.field("tokens").type == pa.int64(), "Spark has no unsigned integers"
    assert answers.schema.field("embedding").type == pa.list_(pa.field("item", pa.float32()))
    assert list(work(iter([]))) == [], "a partition may be empty"
    nothing = list(work(iter([part([])])))
    assert [batch.num_rows for batch in nothing] == [0] and nothing[0].schema == answers.schema


def test_progress_on_executors_is_rejected():
    with pytest.raises(ValueError, match="'progress'"):
        volley_client.spark._mapped(
            "embed_stream", None, ["grpc://x:1"], "m", None, {"progress": True}
        )


def test_a_batch_of_ray_is_answered(cluster):
    embed = volley_client.ray.Embed(cluster.urls, "text-embed", column="text", keep=["id"])
    table = embed(pa.Table.from_batches([part(range(50))]))
    assert table["id"].to_pylist() == list(range(50)) and table.num_columns == 3
    classify = volley_client.ray.Classify(cluster.urls, "text-classify", column="text")
    assert classify(pa.Table.from_batches([part(range(3))])).num_rows == 3
