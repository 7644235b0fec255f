"""Volley beside MLServer, PyTriton and FastAPI on one text encoder: requests of one text each.

    encoders.py MODELS --volley BINARY --bench BINARY --bare ENCODE_RATE
                [--seconds 3] [--rounds 3] [--threads 2] [--only Volley FastAPI]
                [--lengths 8,32,128] [--callers 1,8,32] [--turns 5]

Every server has the machine to itself while it is measured, with the load generator; all give
ONNX Runtime as many threads. They take turns in each round, and the median of the rounds counts.
Then Volley takes turns with a bare loop over ONNX Runtime, `--turns` of them, as the machine's speed
moves: the same texts in one process, in batches of the best size, with no requests. Volley answers
requests of one text, and of as many as the loop's batch; the median of the turns' ratios counts.
Prints Markdown.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import psutil

HERE = pathlib.Path(__file__).resolve().parent
LENGTHS = [8, 32, 128]
CALLERS = [1, 8, 32]
# Callers of requests that are a batch each.
BATCH_CALLERS = 2


def free_port():
    """A port below those that the kernel gives out, with the next three free too."""
    while True:
        first = random.randrange(15_000, 30_000)
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for port in range(first, first + 4):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


def ask(url, body=None, method=None):
    request = urllib.request.Request(
        url, data=body and json.dumps(body).encode(), method=method,
        headers={"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or b"null")


def ready(url, process, limit=120):
    end = time.monotonic() + limit
    while True:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url, timeout=5).close()
            return
        if process.poll() is not None or end < time.monotonic():
            raise SystemExit(f"{url} did not come up")
        time.sleep(0.1)


class Server:
    """A server's processes, in a group of their own."""

    def __init__(self, arguments, directory, ready_at, **environment):
        log = open(pathlib.Path(directory) / "server.log", "ab")
        self.process = subprocess.Popen(
            arguments, stdout=log, stderr=log, cwd=directory, start_new_session=True,
            env=os.environ | environment | {"PYTHONPATH": str(HERE)})
        try:
            ready(ready_at, self.process)
        except SystemExit:
            print((pathlib.Path(directory) / "server.log").read_text()[-4000:], file=sys.stderr)
            self.stop()
            raise

    def cpu(self):
        total = 0.0
        root = psutil.Process(self.process.pid)
        for one in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = one.cpu_times()
                total += times.user + times.system
        return total

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def oip(texts):
    return {"inputs": [
        {"name": "text", "datatype": "BYTES", "shape": [len(texts), 1], "data": texts}]}


def volley(args, directory):
    port = free_port()
    # Takes this port and the next three; threads are chosen by the model's size.
    server = Server(
        [str(args.volley), "up", "--port", str(port), "--data-dir", directory, "--log", "warn"],
        directory, f"http://127.0.0.1:{port}/_volley/health/ready")
    base = f"http://127.0.0.1:{port}"
    plugin = base + "/_plugins/_ml/models"
    model = {"name": "encoder", "function_name": "onnx", "path": str(args.models / "encoder")}
    ask(plugin + "/_register", model, "POST")
    ask(plugin + "/encoder/_deploy", {}, "POST")
    ready(base + "/v2/models/encoder/ready", server.process)
    return server, base + "/v2/models/encoder/infer", oip


def fastapi(args, directory):
    port = free_port()
    python = sys.executable
    server = Server(
        [python, "-m", "uvicorn", "fastapi_server:app", "--port", str(port), "--log-level", "error"],
        directory, f"http://127.0.0.1:{port}/ready", **shared(args))
    return server, f"http://127.0.0.1:{port}/embed", lambda texts: {"input": texts}


def mlserver(args, directory):
    port = free_port()
    path = pathlib.Path(directory)
    (path / "settings.json").write_text(json.dumps({
        "http_port": port, "grpc_port": free_port(), "metrics_port": free_port(),
        "host": "127.0.0.1", "parallel_workers": args.mlserver_workers, "debug": False,
        "use_structured_logging": False, "logging_settings": None}))
    (path / "model-settings.json").write_text(json.dumps({
        "name": "encoder", "implementation": "mlserver_runtime.EncoderModel",
        "max_batch_size": 64, "max_batch_time": 0.001}))
    server = Server(
        [str(pathlib.Path(sys.executable).parent / "mlserver"), "start", "."],
        directory, f"http://127.0.0.1:{port}/v2/models/encoder/ready", **shared(args))
    return server, f"http://127.0.0.1:{port}/v2/models/encoder/infer", oip


def pytriton(args, directory):
    port = free_port()
    # Triton's own processes load Python as a library.
    where = "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"
    library = subprocess.run(
        [str(args.pytriton), "-c", where], check=True, capture_output=True, text=True).stdout.strip()
    server = Server(
        [str(args.pytriton), str(HERE / "pytriton_server.py"), str(port)],
        directory, f"http://127.0.0.1:{port}/v2/models/encoder/ready",
        LD_LIBRARY_PATH=library, **shared(args))
    return server, f"http://127.0.0.1:{port}/v2/models/encoder/infer", oip


def shared(args):
    return {"PEERS_MODEL": str(args.models / "encoder"), "PEERS_THREADS": str(args.threads)}


SERVERS = {"Volley": volley, "FastAPI": fastapi, "MLServer": mlserver, "PyTriton": pytriton}


def load(args, server, url, body, callers, texts=1):
    """Texts per second, CPU-ms per text and p99 in ms of so many callers, who ask for `texts`."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(json.dumps(body))
        file.flush()
        post = [str(args.bench), "post", url, "--body", file.name]
        post += ["--concurrency", str(callers), "--seconds"]
        subprocess.run([*post, "1"], check=True, stdout=subprocess.DEVNULL)
        before = server.cpu()
        told = json.loads(subprocess.run(
            [*post, str(args.seconds)], check=True, capture_output=True).stdout)
    cpu = (server.cpu() - before) / told["requests"] / texts * 1e3
    return told["per_second"] * texts, cpu, told["p99_ms"]


def text_of(length):
    # Two tokens are the encoder's own.
    return " ".join(f"word{7 * index % 900}" for index in range(length - 2))


def measure(args, name, directory):
    """What `load` gives for each length and caller count."""
    server, url, body = SERVERS[name](args, directory)
    try:
        return {
            (length, callers): load(args, server, url, body([text_of(length)]), callers)
            for length in args.lengths for callers in args.callers
        }
    finally:
        server.stop()


def bare(args, length):
    """Texts per second, the batch size and CPU-ms per text of the bare loop."""
    told = subprocess.run(
        [str(args.bare), str(args.models / "encoder"), str(length - 2), str(args.threads),
         str(args.seconds)], check=True, capture_output=True, text=True).stdout.split()
    return float(told[0]), int(told[1]), float(told[2])


def beside_bare(args, directory):
    """Prints what is left of the bare loop's rate and CPU in Volley over HTTP: in requests of one
    text, and in requests of the loop's batch.
    """
    server, url, body = volley(args, directory)
    print("| beside the bare loop | its texts/s | its CPU-ms per text | Volley : bare | "
          "bare : Volley, CPU |")
    print("| --- |" + " ---: |" * 4)
    most = max(args.callers)
    try:
        for length in args.lengths:
            loops, ratios = [], {"one": [], "batch": []}
            text = text_of(length)
            for _ in range(args.turns):
                loop = bare(args, length)
                loops.append(loop)
                # Batches come back as bytes, as clients of this protocol ask for them.
                batch = body([text] * loop[1]) | {"parameters": {"binary_data_output": True}}
                points = [
                    ("one", body([text]), most, 1), ("batch", batch, BATCH_CALLERS, loop[1])]
                for point, asked, callers, texts in points:
                    ours = load(args, server, url, asked, callers, texts)
                    ratios[point].append((ours[0] / loop[0], loop[2] / ours[1]))
            for point, title in [
                ("one", f"{most} requests of one text"),
                ("batch", f"{BATCH_CALLERS} requests of a batch"),
            ]:
                middle = lambda index: statistics.median(pair[index] for pair in ratios[point])
                rate, cpu = (statistics.median(loop[index] for loop in loops) for index in (0, 2))
                print(f"| {length} tokens, {title} | {rate:.0f} | {cpu:.2f} | {middle(0):.2f} | "
                      f"{middle(1):.2f} |")
        print()
    finally:
        server.stop()


def print_tables(args, rounds):
    """Prints the medians of what was measured."""
    for title, index, digits in [
        ("requests/s", 0, 0), ("CPU-ms per request", 1, 2), ("p99 in ms", 2, 1)
    ]:
        print(f"| {title} | " + " | ".join(args.only) + " |")
        print("| --- |" + " ---: |" * len(args.only))
        for length in args.lengths:
            for callers in args.callers:
                cells = [
                    f"{statistics.median(one[length, callers][index] for one in rounds[name]):.{digits}f}"
                    for name in args.only
                ]
                print(f"| {length} tokens, {callers} at once | " + " | ".join(cells) + " |")
        print()


def numbers(text):
    return [int(number) for number in text.split(",")]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("models", type=pathlib.Path)
    parser.add_argument("--volley", type=pathlib.Path, required=True)
    parser.add_argument("--bench", type=pathlib.Path, required=True)
    parser.add_argument("--bare", type=pathlib.Path, required=True)
    parser.add_argument("--pytriton", default=sys.executable, help="the Python that has PyTriton")
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--mlserver-workers", type=int, default=0)
    parser.add_argument("--lengths", type=numbers, default=LENGTHS)
    parser.add_argument("--callers", type=numbers, default=CALLERS)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(SERVERS))
    args = parser.parse_args()
    args.models = args.models.resolve()
    # Servers run in folders of their own.
    args.volley, args.bench, args.bare, args.pytriton = map(
        os.path.abspath, (args.volley, args.bench, args.bare, args.pytriton))
    rounds = {name: [] for name in args.only}
    for _ in range(args.rounds):
        for name in args.only:
            with tempfile.TemporaryDirectory() as directory:
                rounds[name].append(measure(args, name, directory))
    if args.rounds:
        print_tables(args, rounds)
    if "Volley" in rounds and args.turns:
        with tempfile.TemporaryDirectory() as directory:
            beside_bare(args, directory)


if __name__ == "__main__":
    main()
