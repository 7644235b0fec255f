"""The same Python classes on Volley and on MLServer: streams, tables and large tensors.

    python_models.py --volley BINARY [--rounds 5] [--only stream,paced,first,table,tensor,ready]

Runs in the environment with MLServer and its runtime for scikit-learn. Each server has the machine
to itself while it is measured, with the load generator. The servers take turns in each round, and
the median of the rounds counts. CPU time is that of the server with all of its processes, so also
of the model. Prints Markdown.
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time

from encoders import Server, ask, free_port, ready

MODELS = '''
import asyncio
import numpy
from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.types import InferenceResponse, ResponseOutput


class Words(MLModel):
    async def predict_stream(self, payloads):
        async for payload in payloads:
            words, pause = StringCodec.decode_input(payload.inputs[0])[0].split(), self.pause()
            for word in words:
                if pause:
                    await asyncio.sleep(pause)
                yield InferenceResponse(model_name=self.name,
                                        outputs=[StringCodec.encode_output("token", [word])])

    def pause(self):
        return 0


class Paced(Words):
    def pause(self):
        return 0.02


class Same(MLModel):
    async def predict(self, payload):
        tensor = payload.inputs[0]
        return InferenceResponse(model_name=self.name, outputs=[ResponseOutput(
            name="y", shape=tensor.shape, datatype=tensor.datatype, data=tensor.data)])
'''

BARE = '''
import asyncio, sys, time
sys.path.insert(0, ".")
from mlserver.codecs import StringCodec
from mlserver.settings import ModelSettings
from mlserver.types import InferenceRequest
from models import Words
settings = ModelSettings(name="words", implementation=Words)
text = StringCodec.encode_input("prompt", ["word " * 2000])

async def payloads():
    yield InferenceRequest(inputs=[text])

async def count():
    return len([response async for response in Words(settings).predict_stream(payloads())])

asyncio.run(count())
begin = time.process_time()
print((asyncio.run(count()), time.process_time() - begin))
'''

TEXT = [{"name": "prompt", "datatype": "BYTES", "shape": [1], "parameters": {"content_type": "str"}}]
TOKEN = [{"name": "token", "datatype": "BYTES", "shape": [1], "parameters": {"content_type": "str"}}]
#: 32-bit numbers of a row of 1 MiB, and the rows of a request of 16 MiB.
NUMBERS, ROWS = 1 << 18, 16
SETTINGS = {
    "words": {"implementation": "models.Words", "inputs": TEXT, "outputs": TOKEN},
    "paced": {"implementation": "models.Paced", "inputs": TEXT, "outputs": TOKEN},
    "table": {"implementation": "mlserver_sklearn.SKLearnModel",
              "parameters": {"uri": "./model.joblib"}},
    "same": {"implementation": "models.Same",
             "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, NUMBERS]}],
             "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, NUMBERS]}]},
}
TRAIN = '''
import joblib, numpy
from sklearn.linear_model import LogisticRegression
random = numpy.random.default_rng(7)
rows = random.normal(size=(400, 10))
joblib.dump(LogisticRegression().fit(rows, rows[:, 0] > 0), "model.joblib")
'''


def write_models(folder):
    """A directory for each model, as MLServer's users have them."""
    for name, settings in SETTINGS.items():
        directory = folder / name
        directory.mkdir()
        (directory / "models.py").write_text(MODELS)
        (directory / "model-settings.json").write_text(json.dumps({"name": name, **settings}))
    subprocess.run([sys.executable, "-c", TRAIN], check=True, cwd=folder / "table")


def volley(args, models, directory):
    port = free_port()
    server = Server(
        [str(args.volley), "up", "--allow-python", "--port", str(port), "--data-dir", directory,
         "--log", "warn"],
        directory, f"http://127.0.0.1:{port}/_volley/health/ready")
    for name in SETTINGS:
        subprocess.run(
            [str(args.volley), "--url", f"http://127.0.0.1:{port}", "model", "register", name,
             "--backend", "python", "--path", str(models / name), "--param",
             f"python={sys.executable}", "--deploy", "--wait"],
            check=True, stdout=subprocess.DEVNULL)
    return server, port


def mlserver(args, models, directory):
    port = free_port()
    path = pathlib.Path(directory)
    for name in SETTINGS:
        (path / name).symlink_to(models / name)
    # Streams need a single process and no compression.
    (path / "settings.json").write_text(json.dumps({
        "http_port": port, "grpc_port": free_port(), "metrics_port": free_port(),
        "host": "127.0.0.1", "parallel_workers": 0, "gzip_enabled": False, "debug": False,
        "use_structured_logging": False}))
    server = Server(
        [str(pathlib.Path(sys.executable).parent / "mlserver"), "start", "."],
        directory, f"http://127.0.0.1:{port}/v2/health/ready")
    for name in SETTINGS:
        ready(f"http://127.0.0.1:{port}/v2/models/{name}/ready", server.process)
    return server, port


SERVERS = {"Volley": volley, "MLServer": mlserver}


def text_body(words):
    return json.dumps({"inputs": [{**TEXT[0], "data": ["word " * words]}]}).encode()


def streams(port, model, count, words):
    """Reads `count` streams of `words` events at once. The time of each first event, in seconds."""
    body = text_body(words)
    head = (f"POST /v2/models/{model}/infer_stream HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n").encode()
    waiting, begin, first, events = selectors.DefaultSelector(), time.monotonic(), [], 0
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(head + body)
        waiting.register(connection, selectors.EVENT_READ, [0, b""])
    while waiting.get_map():
        for key, _ in waiting.select(60):
            data = key.fileobj.recv(1 << 18)
            if not data:
                waiting.unregister(key.fileobj)
                key.fileobj.close()
                events += key.data[0]
                continue
            # A marker may be cut by the end of a read.
            whole = key.data[1] + data
            found = whole.count(b"data:")
            if found and not key.data[0]:
                first.append(time.monotonic() - begin)
            key.data[0] += found
            key.data[1] = whole[-4:]
    if events < count * words:
        raise SystemExit(f"{model}: {events} of {count * words} events")
    return first


def post(connection, model, body, headers):
    connection.request("POST", f"/v2/models/{model}/infer", body, headers)
    answer = connection.getresponse()
    data = answer.read()
    if answer.status != 200:
        raise SystemExit(f"{model}: {answer.status} {data[:400]!r}")
    return data


def per_unit(server, units, work):
    """CPU microseconds of the server for each of `units`."""
    before = server.cpu()
    work()
    return (server.cpu() - before) / units * 1e6


def measure_stream(server, port):
    streams(port, "words", 8, 200)
    return {"CPU in us per chunk, 64 x 200": per_unit(
        server, 64 * 200 * 5, lambda: [streams(port, "words", 64, 200) for _ in range(5)])}


def measure_paced(server, port):
    return {"CPU in us per chunk, 100 x 200 at 20 ms": per_unit(
        server, 100 * 200, lambda: streams(port, "paced", 100, 200))}


def measure_first(_, port):
    found = streams(port, "words", 32, 20_000)
    return {"first chunk of 32 x 20,000, median in ms": statistics.median(found) * 1e3}


def measure_table(server, port):
    results = {}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for rows, calls in ((1, 400), (256, 100)):
        values = [round(0.01 * index, 2) for index in range(10 * rows)]
        body = json.dumps({"inputs": [{
            "name": "predict", "datatype": "FP64", "shape": [rows, 10], "data": values}],
            "outputs": [{"name": "predict"}]}).encode()
        headers = {"content-type": "application/json"}
        post(connection, "table", body, headers)
        results[f"scikit-learn, {rows} rows: CPU in us per request"] = per_unit(
            server, calls, lambda: [post(connection, "table", body, headers) for _ in range(calls)])
    return results


def measure_tensor(_, port):
    """Binary tensors, which MLServer's REST does not take, over Volley only."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    size = NUMBERS * ROWS * 4
    head = json.dumps({"inputs": [{
        "name": "x", "datatype": "FP32", "shape": [ROWS, NUMBERS],
        "parameters": {"binary_data_size": size}}],
        "parameters": {"binary_data_output": True}}).encode()
    headers = {"inference-header-content-length": str(len(head))}
    body = head + bytes(size)
    post(connection, "same", body, headers)
    begin, calls = time.monotonic(), 10
    for _ in range(calls):
        post(connection, "same", body, headers)
    rate = 2 * size * calls / (time.monotonic() - begin)
    return {"16 MiB in and out over REST, GB/s": rate / 1e9}


MEASURES = {"stream": measure_stream, "paced": measure_paced, "first": measure_first,
            "table": measure_table, "tensor": measure_tensor}
#: What only one of the servers can do.
ONLY = {"tensor": ["Volley"]}


def bare(models):
    """CPU microseconds per chunk of the class without a server."""
    told = subprocess.run([sys.executable, "-c", BARE], check=True, capture_output=True, text=True,
                          cwd=models / "words").stdout
    count, seconds = (float(part) for part in told.strip("()\n ").split(","))
    return seconds / count * 1e6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--volley", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(MEASURES))
    args = parser.parse_args()
    args.volley = args.volley.resolve()
    chosen = args.only.split(",")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        models = pathlib.Path(folder)
        write_models(models)
        for _ in range(args.rounds):
            if "stream" in chosen:
                row = found.setdefault("CPU in us per chunk, the class alone", {})
                row.setdefault("bare", []).append(bare(models))
            for name, start in SERVERS.items():
                with tempfile.TemporaryDirectory() as directory:
                    server, port = start(args, models, directory)
                    try:
                        for measure in chosen:
                            if name not in ONLY.get(measure, SERVERS):
                                continue
                            for title, value in MEASURES[measure](server, port).items():
                                found.setdefault(title, {}).setdefault(name, []).append(value)
                    finally:
                        server.stop()
    print("| median of %d | Volley | MLServer | Volley : MLServer |" % args.rounds)
    print("| --- | ---: | ---: | ---: |")
    for title, row in found.items():
        medians = {name: statistics.median(values) for name, values in row.items()}
        if "bare" in medians:
            print(f"| {title} | {medians['bare']:.1f} | | |")
            continue
        ours, theirs = medians["Volley"], medians.get("MLServer")
        cells = ["", ""] if theirs is None else [f"{theirs:.1f}", f"{ours / theirs:.2f}"]
        print(f"| {title} | {ours:.1f} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
