"""CPU time of one chat that is not streamed: through nginx and through Volley, to the same server.

The server is a process of nginx of its own that answers every chat with the same completion. Each
round sends the same number of requests over the same number of kept connections straight, through
nginx and through Volley, one after the other; what counts is the processor time that the processes
in between use, from /proc.
"""

import argparse
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK")
ANSWER = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{
        "index": 0, "finish_reason": "stop",
        "message": {"role": "assistant", "content": "The quick brown fox ran to the river. " * 8},
    }],
    "usage": {"prompt_tokens": 12, "completion_tokens": 72, "total_tokens": 84},
}
NGINX = """
worker_processes 1;
daemon off;
pid {folder}/{name}.pid;
error_log {folder}/{name}.log warn;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/{name}-body;
  proxy_temp_path {folder}/{name}-proxy;
  fastcgi_temp_path {folder}/{name}-fastcgi;
  uwsgi_temp_path {folder}/{name}-uwsgi;
  scgi_temp_path {folder}/{name}-scgi;
  keepalive_requests 100000000;
  {body}
}}
"""
SERVER = """
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    default_type application/json;
    location / {{ return 200 '{answer}'; }}
  }}
"""
PROXY = """
  upstream server {{ server 127.0.0.1:{upstream}; keepalive 256; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://server;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
    }}
  }}
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def family(pid):
    """A process and those that it started."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += family(int(child))
    return found


def cpu_seconds(pid):
    total = 0
    for one in family(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICK


def wait_for(port, path="/"):
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"nobody answers at port {port}{path}")


def call(port, path, body):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def send(port, count, body, failures):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"content-type": "application/json"}
    for _ in range(count):
        connection.request("POST", "/v1/chat/completions", body, headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200 or b"quick brown fox" not in text:
            failures.append((answer.status, text[:200]))
            return
    connection.close()


def load(port, requests, connections, model):
    """Sends the requests; fails where one is not answered whole."""
    body = json.dumps({
        "model": model,
        "messages": [{"role": "user", "content": "Tell me a story about a fox. " * 8}],
    })
    failures = []
    threads = [
        threading.Thread(target=send, args=(port, requests // connections, body, failures))
        for _ in range(connections)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise SystemExit(f"a request failed: {failures[0]}")


class Bed:
    """The server, nginx in front of it, and Volley in front of it."""

    def __init__(self, folder, volley):
        self.folder, self.processes = folder, []
        self.ports = {name: free_port() for name in ("server", "nginx")}
        body = SERVER.format(port=self.ports["server"], answer=json.dumps(ANSWER))
        self.nginx("server", body)
        body = PROXY.format(port=self.ports["nginx"], upstream=self.ports["server"])
        self.pids = {"nginx": self.nginx("nginx", body)}
        self.ports["volley"] = free_port()
        command = [volley, "up", "--port", str(self.ports["volley"]), "--data-dir", f"{folder}/data"]
        self.pids["volley"] = self.start("volley", command)
        wait_for(self.ports["server"])
        wait_for(self.ports["nginx"])
        wait_for(self.ports["volley"], "/_volley/health/ready")
        url = f"http://127.0.0.1:{self.ports['server']}/v1/chat/completions"
        port = self.ports["volley"]
        ml = "/_plugins/_ml"
        call(port, f"{ml}/connectors/_create", {"id": "local", "url": url, "model": "m"})
        model = {"name": "remote", "function_name": "remote", "connector_id": "local"}
        call(port, f"{ml}/models/_register?deploy=true", model)
        self.wait_until_answered(port)

    def wait_until_answered(self, port):
        body = {"model": "remote", "messages": [{"role": "user", "content": "x"}]}
        for _ in range(600):
            try:
                call(port, "/v1/chat/completions", body)
                return
            except OSError:
                time.sleep(0.1)
        raise SystemExit("Volley does not answer")

    def nginx(self, name, body):
        config = self.folder / f"{name}.conf"
        config.write_text(NGINX.format(folder=self.folder, name=name, body=body))
        return self.start(name, ["nginx", "-c", str(config), "-p", str(self.folder)])

    def start(self, name, command):
        log = open(self.folder / f"{name}.out", "w")
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        self.processes.append(process)
        return process.pid

    def stop(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--volley", required=True)
    parser.add_argument("--requests", type=int, default=8000)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bed = Bed(Path(folder), arguments.volley)
        try:
            spent = {"nginx": [], "volley": []}
            for turn in range(arguments.rounds + 1):
                for name, rounds in spent.items():
                    model = "remote" if name == "volley" else "m"
                    before = cpu_seconds(bed.pids[name])
                    load(bed.ports[name], arguments.requests, arguments.connections, model)
                    used = cpu_seconds(bed.pids[name]) - before
                    # The first round opens the connections.
                    if turn:
                        rounds.append(used / arguments.requests * 1e6)
        finally:
            bed.stop()
    medians = {name: statistics.median(rounds) for name, rounds in spent.items()}
    print("| proxy | CPU per request | lowest to highest round |")
    print("|---|---|---|")
    for name, rounds in spent.items():
        print(f"| {name} | {medians[name]:.0f} µs | {min(rounds):.0f} to {max(rounds):.0f} µs |")
    print(f"\nVolley uses {medians['volley'] / medians['nginx']:.1f} times the CPU of nginx.")


if __name__ == "__main__":
    main()
