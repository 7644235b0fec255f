"""Clusters of real processes, for tests and measurements."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import httpx

from volley_client import Client

ROOT = Path(__file__).resolve().parents[3]
MODELS = ROOT / "crates/backend-onnx/tests/models"
BINARY = os.environ.get("VOLLEY_BINARY", str(ROOT / "target/debug/volley"))
PATIENCE = 60.0


def until(what, condition, patience=PATIENCE):
    """Waits for a condition and returns its value; fails after a minute, or after `patience`."""
    end = time.monotonic() + patience
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < end, f"waited too long: {what}"
        time.sleep(0.05)


class Ports:
    """Ports of this process, above those that the system gives to connections, so that a node finds
    its own free. Other processes of tests lock other blocks."""

    FIRST, SIZE, BLOCKS = 61_000, 200, 22

    def __init__(self):
        self._lock, first = self._locked_block()
        self._range = range(first, first + self.SIZE)
        self._next = 0

    def _locked_block(self):
        for block in range(self.BLOCKS):
            lock = open(Path(tempfile.gettempdir()) / f"volley-client-ports-{block}", "a")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                continue
            return lock, self.FIRST + block * self.SIZE
        raise AssertionError("all blocks of ports are in use")

    def take(self, count):
        """Neighbouring ports that are free."""
        for _ in range(2 * self.SIZE):
            if self._next + count > len(self._range):
                self._next = 0
            found = list(self._range[self._next : self._next + count])
            self._next += count
            if all(map(self._is_free, found)):
                return found
        raise AssertionError(f"no {count} neighbouring ports are free")

    @staticmethod
    def _is_free(port):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
            return True


_ports = None


def free_ports(count):
    """Neighbouring ports that are free now."""
    global _ports
    _ports = _ports or Ports()
    return _ports.take(count)


def environment():
    """Of the processes: no proxy, scripted models, and ONNX Runtime of the checkout."""
    library = ROOT / "target/ort/libonnxruntime.so"
    found = dict(os.environ, VOLLEY_ALLOW_FAKE_BACKEND="true", VOLLEY_LOG="info,openraft=warn")
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        found[name] = "http://127.0.0.1:9"
    if library.exists():
        found.setdefault("VOLLEY_ONNXRUNTIME", str(library))
    return found


class Node:
    """One process."""

    def __init__(self, name, folder, arguments):
        self.name = name
        self.log = folder / f"{name}.log"
        self._arguments = [BINARY, *arguments]
        self.process = None

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self._arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment()
            )

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        """SIGKILL, and waits for the end."""
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()

    def output(self):
        return self.log.read_text(errors="replace")

    def check(self):
        """Fails if the process has ended by itself."""
        ended = self.process.poll()
        assert ended is None, f"{self.name} ended with {ended}:\n{self.output()[-3000:]}"


class Cluster:
    """Coordinators and workers with their files in one folder."""

    def __init__(self, folder, coordinators, workers, coordinator_extra="", worker_extra=""):
        ports = iter(free_ports(2 * (coordinators + workers)))
        self.folder = Path(folder)
        self.public = [f"127.0.0.1:{next(ports)}" for _ in range(coordinators)]
        self.internal = [f"127.0.0.1:{next(ports)}" for _ in range(coordinators)]
        members = "\n".join(f'{index} = "{it}"' for index, it in enumerate(self.internal, 1))
        self.coordinators = [
            self._node(
                "coordinator",
                index,
                f'[node]\nid = {index}\ndata_dir = "{self.folder}/coordinator-{index}"\n'
                f'[listen]\npublic = "{self.public[index - 1]}"\n'
                f'internal = "{self.internal[index - 1]}"\n'
                f'[cluster.bootstrap]\n{members}\n[raft]\nwrite_timeout = "10s"\n'
                f"{coordinator_extra}",
            )
            for index in range(1, coordinators + 1)
        ]
        self.workers = [
            self._node(
                "worker",
                index,
                f'[node]\nid = "worker-{index}"\n'
                f'[listen]\nflight = "127.0.0.1:{next(ports)}"\nhttp = "127.0.0.1:{next(ports)}"\n'
                f"[cluster]\ncoordinators = {self.internal}\n"
                f'[artifacts]\ncache_dir = "{self.folder}/worker-{index}"\n{worker_extra}',
            )
            for index in range(1, workers + 1)
        ]

    def _node(self, role, index, text):
        config = self.folder / f"{role}-{index}.toml"
        config.write_text("version = 1\n" + text.replace("'", '"'))
        return Node(f"{role}-{index}", self.folder, [role, "--config", str(config)])

    @property
    def rest(self):
        return [f"http://{address}" for address in self.public]

    @property
    def flight(self):
        return [f"grpc://{address}" for address in self.internal]

    @property
    def urls(self):
        return self.flight + self.rest

    def client(self, urls=None, **options):
        return Client(urls or self.urls, **options)

    def __enter__(self):
        try:
            for node in self.coordinators + self.workers:
                node.start()
            until("a leader and all workers", self._is_ready)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for node in self.coordinators + self.workers:
            node.stop()

    def _is_ready(self):
        for node in self.coordinators + self.workers:
            node.check()
        try:
            for url in self.rest:
                status = httpx.get(f"{url}/_volley/status", timeout=5).json()
                alive = [it for it in status["workers"] if it["liveness"] == "alive"]
                if not status["node"]["leader"] or len(alive) < len(self.workers):
                    return False
        except httpx.HTTPError:
            return False
        return True

    def deploy(self, name, replicas=None, **body):
        """Registers and deploys a model, and waits until every coordinator sees it deployed."""
        with self.client() as client:
            client.models.register({"name": name, **body})
            client.models.deploy(name, replicas=replicas or len(self.workers))
        for url in self.rest:
            with self.client([url]) as client:
                client.wait_until_deployed(name, PATIENCE)

    def deploy_encoder(self, name):
        self.deploy(name, function_name="onnx", path=str(MODELS / name))

    def deploy_all(self):
        for name in ("text-embed", "text-rerank", "text-classify"):
            self.deploy_encoder(name)
        self.deploy("storyteller", function_name="onnx", path=str(ROOT / "models/storyteller"))
        self.deploy("classifier", function_name="onnx", path=str(ROOT / "models/classifier"))
        self.deploy("drill", function_name="fake")

    def active_streams(self, model):
        """Streams of a model that run now, on all coordinators."""
        return self._metric(f'volley_active_streams{{model="{model}"}}')

    def answered(self, model):
        """Requests to a model that succeeded, on all coordinators."""
        return self._metric(f'volley_requests_total{{model="{model}",code="ok"}}')

    def _metric(self, sample):
        total = 0
        for url in self.rest:
            for line in httpx.get(f"{url}/metrics", timeout=30).text.splitlines():
                if line.startswith(f"{sample} "):
                    total += int(float(line.split()[-1]))
        return total


class Up:
    """`volley up`: a whole cluster in one process, with its demo models."""

    def __init__(self, folder, keys=False):
        self.port = free_ports(4)[0]
        self.key = None
        arguments = ["up", "--port", str(self.port), "--data-dir", str(folder / "data")]
        if keys:
            made = subprocess.run(
                [BINARY, "key", "bootstrap"], capture_output=True, check=True, text=True
            )
            self.key = made.stdout.strip()
            file = folder / "bootstrap.key"
            file.write_text(self.key)
            file.chmod(0o600)
            arguments += ["--bootstrap-key-file", str(file)]
        self.node = Node("up", folder, arguments)
        self.rest, self.flight = (
            f"http://127.0.0.1:{self.port}",
            f"grpc://127.0.0.1:{self.port + 1}",
        )
        self.urls = [self.flight, self.rest]

    def __enter__(self):
        self.node.start()

        def ready():
            self.node.check()
            return "Ctrl-C" in self.node.output()

        try:
            until("volley up is ready", ready)
        except BaseException:
            self.node.stop()
            raise
        return self

    def __exit__(self, *_):
        self.node.stop()

    def client(self, **options):
        options.setdefault("api_key", self.key)
        return Client(self.urls, **options)
