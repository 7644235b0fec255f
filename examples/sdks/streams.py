"""Readers of server-sent events that know no house: httpx-sse, and a browser's EventSource.

    pip install httpx httpx-sse
    python streams.py --url http://127.0.0.1:8420 --model storyteller --browser /usr/bin/chromium

The browser reads a stream that can be taken up again, through a proxy that cuts it in the middle:
it comes back by itself, and must have everything once. Without --browser that step is left out.
Prints one line for each step; fails on the first that is not as it should be.
"""

import argparse
import http.client
import http.server
import json
import queue
import subprocess
import tempfile
import threading
import urllib.parse

import httpx
from httpx_sse import connect_sse

PROMPT = "Tell me a story about a fox."
PAGE = """<!doctype html><title>Volley</title><script>
const told = { text: "", events: 0, opened: 0, ids: [] };
const source = new EventSource("STREAM");
source.onopen = () => { told.opened += 1; };
source.onmessage = (event) => {
  const part = JSON.parse(event.data).inference_results[0].output[0].dataAsMap;
  told.text += part.content;
  told.events += 1;
  told.ids.push(event.lastEventId);
  told.last = part.is_last;
};
source.onerror = () => {
  if (source.readyState !== EventSource.CLOSED) return;
  fetch("/told", { method: "POST", body: JSON.stringify(told) });
};
</script>"""


def said(step, text):
    print(json.dumps({"step": step, "text": text}), flush=True)


def with_httpx(url, model):
    """As MLServer's documentation reads its streams."""
    with httpx.Client(base_url=url, timeout=60) as client:
        asked = {"text_input": PROMPT, "parameters": {"max_tokens": 20, "temperature": 0}}
        path = f"/v2/models/{model}/generate"
        whole = client.post(path, json=asked).raise_for_status().json()["text_output"]
        with connect_sse(client, "POST", f"{path}_stream", json=asked) as source:
            source.response.raise_for_status()
            parts = [event.json()["text_output"] for event in source.iter_sse()]
        assert "".join(parts) == whole and 2 < len(parts), parts
        said("httpx-sse", whole)
        with connect_sse(client, "POST", f"{path}_stream", json={"text_input": 7}) as source:
            assert source.response.status_code == 400
        long = {"text_input": PROMPT, "parameters": {"max_tokens": 900, "ignore_eos": True}}
        with connect_sse(client, "POST", f"{path}_stream", json=long) as source:
            next(source.iter_sse())
        said("httpx-sse, left", "in the middle")


class Proxy(http.server.BaseHTTPRequestHandler):
    """Serves the page, and passes the stream on; the first time it breaks off in an event."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path != self.server.stream:
            body = PAGE.replace("STREAM", self.server.stream).encode()
            self.send_response(200 if self.path == "/" else 404)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.close_connection = True
        last = self.headers.get("Last-Event-ID")
        self.server.asked.append(last)
        upstream = http.client.HTTPConnection(self.server.upstream, timeout=60)
        headers = {"accept": "text/event-stream"} | ({"last-event-id": last} if last else {})
        upstream.request("GET", self.path, headers=headers)
        answer = upstream.getresponse()
        self.send_response(answer.status)
        for name in ("content-type", "cache-control"):
            if value := answer.getheader(name):
                self.send_header(name, value)
        self.send_header("connection", "close")
        self.end_headers()
        left = 700 if len(self.server.asked) == 1 else None
        while piece := answer.read1(1 << 16):
            if left is not None:
                piece, left = piece[:left], left - len(piece)
            self.wfile.write(piece)
            if left is not None and left <= 0:
                break
        upstream.close()

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(204)
        self.end_headers()
        self.server.told.put(json.loads(body))


def with_browser(url, model, browser):
    upstream = urllib.parse.urlsplit(url).netloc
    path = f"/_plugins/_ml/models/{model}/_predict"
    asked = {"parameters": {"prompt": PROMPT, "max_tokens": 30, "temperature": 0}}
    with httpx.Client(base_url=url, timeout=60) as client:
        whole = client.post(path, json=asked).raise_for_status().json()
        whole = whole["inference_results"][0]["output"][0]["dataAsMap"]["response"]
        held = {"x-volley-stream": "resumable"}
        with client.stream("POST", f"{path}/stream", json=asked, headers=held) as response:
            stream = response.headers["x-volley-stream-id"]
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.stream, server.upstream = f"/v1/streams/{stream}", upstream
    server.asked, server.told = [], queue.Queue()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page = f"http://127.0.0.1:{server.server_address[1]}/"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        running = subprocess.Popen(
            [browser, *flags, page], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            told = server.told.get(timeout=90)
        finally:
            running.kill()
            running.wait()
            server.shutdown()
    assert told["text"] == whole and told["last"] is True, told
    assert len(set(told["ids"])) == told["events"], "nothing came twice"
    # Once cut, once to its end, once to learn that there is no more.
    assert told["opened"] == 2 and len(server.asked) == 3, (told, server.asked)
    assert server.asked[0] is None and server.asked[1] in told["ids"], server.asked
    said("a browser's EventSource", told["events"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:8420")
    parser.add_argument("--model", default="storyteller")
    parser.add_argument("--browser")
    given = parser.parse_args()
    with_httpx(given.url, given.model)
    if given.browser:
        with_browser(given.url, given.model, given.browser)


if __name__ == "__main__":
    main()
