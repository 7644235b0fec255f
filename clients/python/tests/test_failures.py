"""Lost connections, killed nodes, and what cannot succeed: each row is answered exactly once."""

from __future__ import annotations

import signal
import time

import numpy
import pytest

from cluster import free_ports
from proxy import AbortingProxy
from volley_client import Client, ConnectionLostError, Retry, errors

ROWS = 40_000


def text(row):
    return f"row {row} " + "word " * (row % 5)


def rows(count=ROWS):
    return ({"id": row, "text": text(row)} for row in range(count))


def embedded(client, transport, count=ROWS, after=None, **options):
    """Embeds rows; calls `after` once a quarter of them is answered. The ids and the vectors."""
    ids, vectors = [], []
    with client.embed_stream(
        "text-embed", rows(count), column="text", keep=["id"], transport=transport, **options
    ) as stream:
        for batch in stream:
            ids.extend(batch.column("id").to_pylist())
            vectors.extend(batch.column("embedding").to_pylist())
            if after is not None and len(ids) >= count // 4:
                after()
                after = None
    return ids, numpy.array(vectors)


def each_once(found, expected):
    ids, vectors = found
    assert ids == list(range(len(expected))), "each row once, in order"
    assert numpy.allclose(vectors, expected, atol=1e-4), "and with its own answer"


@pytest.fixture(scope="module")
def expected(cluster):
    with cluster.client() as client:
        return embedded(client, "flight")[1]


def test_a_killed_coordinator_loses_and_repeats_no_row(mortal, transport, expected):
    mortal.deploy_encoder("text-embed")
    with mortal.client() as client:
        found = embedded(client, transport, after=mortal.coordinators[1].kill, batch_size=512)
        failed = [it for it in client._core.endpoints[transport]._all if it.failures]
    each_once(found, expected)
    assert len(failed) == 1, "the killed coordinator was noticed"


def test_a_killed_worker_loses_and_repeats_no_row(mortal, transport, expected):
    mortal.deploy_encoder("text-embed")
    with mortal.client() as client:
        found = embedded(client, transport, after=mortal.workers[0].kill, batch_size=512)
    each_once(found, expected)


def test_a_frozen_coordinator_is_left(mortal, transport, expected):
    mortal.deploy_encoder("text-embed")
    frozen = mortal.coordinators[2]
    with mortal.client(exchange_timeout=4.0) as client:
        stop = lambda: frozen.signal(signal.SIGSTOP)  # noqa: E731
        each_once(embedded(client, transport, after=stop, batch_size=512), expected)


def test_rows_behind_aborted_connections_are_sent_again(cluster, transport, expected):
    addresses = cluster.internal if transport == "flight" else cluster.public
    scheme = "grpc" if transport == "flight" else "http"
    # An abort in the middle of an answer to 1,024 rows of 64 bytes.
    with AbortingProxy(addresses[0], after=100_000, aborts=4) as proxy:
        urls = [f"{scheme}://{proxy.address}", f"{scheme}://{addresses[1]}"]
        with cluster.client(urls) as client:
            each_once(embedded(client, transport), expected)
        assert proxy.aborted >= 1, "a connection was aborted"


def test_generations_of_a_lost_coordinator_are_repeated(mortal):
    mortal.deploy("drill", function_name="fake")
    script = {"chunks": 10, "delay_ms": 20, "text": "n{n} "}
    with mortal.client() as client:
        stream = client.generate_rows_stream(
            "drill", ["x"] * 60, batch_size=1, parameters=script, transport="flight"
        )
        first = next(stream)
        mortal.coordinators[0].kill()
        texts = first.column("text").to_pylist()
        for batch in stream:
            texts += batch.column("text").to_pylist()
    assert texts == ["".join(f"n{number} " for number in range(10))] * 60


def test_a_cluster_that_is_gone_is_an_error_that_names_it(transport):
    (port,) = free_ports(1)
    scheme = "grpc" if transport == "flight" else "http"
    url = f"{scheme}://127.0.0.1:{port}"
    with Client([url], retry=Retry(attempts=3, backoff=0.01)) as client:
        began = time.monotonic()
        with pytest.raises(ConnectionLostError, match=f"127.0.0.1:{port}"):
            client.embed("text-embed", ["x"])
        with pytest.raises(ConnectionLostError):
            client.generate("storyteller", "x")
        assert time.monotonic() - began < 20


def test_a_deadline_ends_retries(transport):
    (port,) = free_ports(1)
    scheme = "grpc" if transport == "flight" else "http"
    with Client([f"{scheme}://127.0.0.1:{port}"], retry=Retry(attempts=1000)) as client:
        began = time.monotonic()
        with pytest.raises(errors.DeadlineExceededError):
            client.embed("text-embed", ["x"], timeout=1.0)
        assert time.monotonic() - began < 5


def test_a_key_is_needed_and_checked(locked, transport):
    from volley_client import Client

    with locked.client() as client:
        assert client.generate(
            "storyteller", "Once", parameters={"max_tokens": 2}, transport=transport
        ).text
        assert client.cluster.whoami()["role"] == "cluster-admin"
    for key in (None, "vly_0000000000000000_wrong"):
        with Client(locked.urls, api_key=key) as client:
            with pytest.raises(errors.UnauthenticatedError):
                client.generate("storyteller", "Once", transport=transport)
            with pytest.raises(errors.UnauthenticatedError):
                client.predict("classifier", {"pixels": [[0.0] * 64]}, transport=transport)
            with pytest.raises(errors.UnauthenticatedError):
                client.cluster.status()


def test_a_key_of_some_models_reaches_no_others(locked, transport):
    from volley_client import Client

    with locked.client() as admin:
        made = admin.keys.create("reader", "predict", models=["storyteller"])
    with Client(locked.urls, api_key=made["key"]) as client:
        parameters = {"max_tokens": 2}
        assert client.generate("storyteller", "x", parameters=parameters, transport=transport).text
        with pytest.raises(errors.NotFoundError):
            client.predict("classifier", {"pixels": [[0.0] * 64]}, transport=transport)
        with pytest.raises(errors.PermissionDeniedError):
            client.keys.list()


def test_malformed_clients_are_rejected():
    for urls in ([], ["127.0.0.1:8420"], ["ftp://x:1"], ["grpc://x"], ["http://"], "http://x:1"):
        with pytest.raises(ValueError):
            Client(urls)
    with Client(["http://127.0.0.1:1"]) as client:
        with pytest.raises(ValueError, match="'flight'"):
            client.embed("text-embed", ["x"], transport="flight")
        with pytest.raises(ValueError, match="grpc://"):
            client.functions()
    with Client(["grpc://127.0.0.1:1"]) as client:
        with pytest.raises(ValueError, match="http://"):
            client.cluster.status()
