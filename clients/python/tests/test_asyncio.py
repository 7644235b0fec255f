"""The asynchronous client."""

from __future__ import annotations

import asyncio

import pytest

from cluster import until
from volley_client import AsyncClient, errors


def run(work):
    return asyncio.run(asyncio.wait_for(work, 60))


def test_every_call_over_both_transports(cluster, transport):
    async def story():
        async with AsyncClient(cluster.urls) as client:
            many = [f"row {row}" for row in range(3_000)]
            rows = await client.embed("text-embed", many, transport=transport)
            assert len(rows) == 3_000
            ranked = await client.rerank(
                "text-rerank", "a bird", ["a crow", "a bridge"], top_n=1, transport=transport
            )
            assert len(ranked) == 1
            assert len(await client.classify("text-classify", ["x"], transport=transport)) == 1
            blank = {"pixels": [[0.0] * 64]}
            assert len(await client.predict("classifier", blank, transport=transport)) == 1
            options = {"parameters": {"max_tokens": 8}, "transport": transport}
            whole = await client.generate("storyteller", "Once", **options)
            async with client.generate_stream("storyteller", "Once", **options) as stream:
                text = "".join([chunk.text async for chunk in stream])
            assert text == whole.text
            told = await client.generate_rows("storyteller", ["Once"] * 3, **options)
            assert told["text"].to_pylist() == [whole.text] * 3
            with pytest.raises(errors.NotFoundError):
                await client.embed("nobody", ["x"], transport=transport)

    run(story())


def test_calls_run_at_once(cluster, transport):
    async def story():
        async with AsyncClient(cluster.urls) as client:
            texts = [[f"call {call} row {row}" for row in range(50)] for call in range(30)]
            calls = [client.embed("text-embed", it, transport=transport) for it in texts]
            assert [len(rows) for rows in await asyncio.gather(*calls)] == [50] * 30

    run(story())


def test_a_stream_of_rows_is_bounded(cluster, transport):
    read = 0

    def texts():
        nonlocal read
        while True:
            read += 1
            yield f"row {read}"

    async def story():
        async with AsyncClient(cluster.urls) as client:
            stream = await client.embed_stream(
                "text-embed", texts(), batch_size=50, concurrency=2, transport=transport
            )
            async with stream:
                for _ in range(3):
                    assert (await stream.__anext__()).num_rows == 50
            assert read <= 50 * (3 + 2)
            with pytest.raises(errors.CancelledError):
                await stream.__anext__()

    run(story())


@pytest.mark.parametrize("how", ["stream", "whole", "rows"])
def test_a_cancelled_task_stops_the_model(cluster, transport, how):
    until("no stream of an earlier test runs", lambda: cluster.active_streams("drill") == 0)
    options = {"parameters": {"chunks": 100_000, "delay_ms": 10}, "transport": transport}

    async def story():
        async with AsyncClient(cluster.urls) as client:

            async def work():
                if how == "whole":
                    await client.generate("drill", "x", **options)
                elif how == "rows":
                    await client.generate_rows("drill", ["x"] * 4, batch_size=1, **options)
                else:
                    async for _ in client.generate_stream("drill", "x", **options):
                        pass

            task = asyncio.create_task(work())
            count = lambda: cluster.active_streams("drill")  # noqa: E731
            await asyncio.to_thread(until, "the stream runs", lambda: count() > 0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(until, "no stream runs", lambda: count() == 0)

    run(story())


def test_a_stream_is_resumed_and_the_cluster_is_managed(cluster):
    script = {"chunks": 30, "delay_ms": 10, "text": "n{n} "}

    async def story():
        async with AsyncClient(cluster.rest) as client:
            stream = client.generate_stream("drill", "x", resumable=True, parameters=script)
            had = [(await stream.__anext__()).text for _ in range(5)]
            await stream.aclose()
            rest = client.resume_stream(stream.id, after=stream.last_event_id)
            text = "".join(had + [chunk.text async for chunk in rest])
            assert text == "".join(f"n{number} " for number in range(30))
            assert len((await client.cluster.status())["coordinators"]) == 3
            assert (await client.models.get("drill"))["model_state"] == "DEPLOYED"
            await client.wait_until_deployed("drill", 5)

    run(story())


def test_a_function_is_called(cluster):
    async def story():
        async with AsyncClient(cluster.flight) as client:
            assert "text-embed" in await client.functions()
            vectors = await client.call_function("text-embed", [["a dog", None]])
            assert len(vectors[0].as_py()) == 16 and vectors[1].as_py() is None
            assert (await client.describe("text-rerank"))["task"] == "rerank"

    run(story())
