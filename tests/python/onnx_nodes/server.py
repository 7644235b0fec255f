"""A whole cluster in one process, for as long as it is needed."""

import contextlib
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path


@contextlib.contextmanager
def cluster(binary, port):
    """Its URL, once it answers."""
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="volley-nodes-") as folder:
        log_path = Path(folder) / "log"
        with log_path.open("wb") as log:
            command = [binary, "--log", "warn", "up", "--data-dir", f"{folder}/data"]
            process = subprocess.Popen([*command, "--port", str(port)], stdout=log, stderr=log)
        try:
            wait(process, url, log_path)
            yield url
            if process.poll() is not None:
                tail = log_path.read_text(errors="replace")[-2000:]
                raise SystemExit(f"volley ended in the middle:\n{tail}")
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def wait(process, url, log_path):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(f"{url}/v2/health/ready", timeout=5).close()
            return
        time.sleep(0.1)
    raise SystemExit(f"volley did not start:\n{log_path.read_text(errors='replace')[-2000:]}")
