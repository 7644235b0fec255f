"""A million short texts through one Flight DoExchange, embedded while they stream.

    bulk.py MODEL --volley BINARY [--rows 1000000]

MODEL is a small text encoder's directory. Starts a cluster in one process, sends batches and reads
embeddings at the same time, checks that every row came back once and in order, and prints rows per
second and the server's memory over time. Needs pyarrow and psutil. The example `encode_rate` of the
ONNX backend prints what a bare loop does with the same model.
"""

import argparse
import contextlib
import json
import pathlib
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request

import psutil
import pyarrow as pa
import pyarrow.flight as flight

BATCH = 1_000
SPECIAL = 2


def words(row):
    return 4 + row % 5


def text(row):
    return " ".join(f"word{(row * 31 + place * 7) % 900}" for place in range(words(row)))


def batches(rows):
    schema = pa.schema([pa.field("text", pa.string())])
    for first in range(0, rows, BATCH):
        texts = [text(row) for row in range(first, min(first + BATCH, rows))]
        yield pa.record_batch([pa.array(texts)], schema=schema)


@contextlib.contextmanager
def cluster(volley, model):
    with tempfile.TemporaryDirectory() as directory:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        log = open(pathlib.Path(directory) / "log", "wb")
        process = subprocess.Popen(
            [volley, "up", "--port", str(port), "--data-dir", directory, "--log", "warn"],
            stdout=log, stderr=log)
        base = f"http://127.0.0.1:{port}"
        try:
            wait(base + "/_volley/health/ready")
            post(base + "/_plugins/_ml/models/_register",
                 {"name": "bulk", "function_name": "onnx", "path": str(model)})
            post(base + "/_plugins/_ml/models/bulk/_deploy", {})
            wait(base + "/v2/models/bulk/ready")
            yield process, port
        finally:
            process.terminate()
            process.wait()


def post(url, body):
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"})
    urllib.request.urlopen(request, timeout=30).close()


def wait(url):
    end = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(url, timeout=5).close()
        if end < time.monotonic():
            raise SystemExit(f"{url} did not come up")
        time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--volley", required=True)
    parser.add_argument("--rows", type=int, default=1_000_000)
    args = parser.parse_args()
    with cluster(args.volley, args.model.resolve()) as (process, port):
        watched = psutil.Process(process.pid)
        client = flight.connect(f"grpc://127.0.0.1:{port + 1}")
        descriptor = flight.FlightDescriptor.for_path("bulk")
        writer, reader = client.do_exchange(descriptor)
        first = next(batches(1))
        writer.begin(first.schema)
        memory, started, cpu = [], time.perf_counter(), sum(watched.cpu_times()[:2])

        def write():
            for batch in batches(args.rows):
                writer.write_batch(batch)
            writer.done_writing()

        thread = threading.Thread(target=write)
        thread.start()
        rows = 0
        for chunk in reader:
            tokens = chunk.data.column("tokens").to_pylist()
            expected = [words(rows + place) + SPECIAL for place in range(len(tokens))]
            assert tokens == expected, f"other rows came back from {rows} on"
            rows += chunk.data.num_rows
            if rows // (args.rows // 10) != (rows - chunk.data.num_rows) // (args.rows // 10):
                memory.append(watched.memory_info().rss / 2**20)
                took = time.perf_counter() - started
                print(f"{rows:>9} rows, {rows / took:>7.0f} rows/s, {memory[-1]:.0f} MiB", flush=True)
        thread.join()
        took = time.perf_counter() - started
        cpu = sum(watched.cpu_times()[:2]) - cpu
        assert rows == args.rows, f"{rows} rows came back"
        print(f"{rows} rows in {took:.1f} s: {rows / took:.0f} rows/s, {cpu / rows * 1e6:.0f} CPU-µs a row; "
              f"memory {min(memory):.0f} to {max(memory):.0f} MiB")


if __name__ == "__main__":
    main()
