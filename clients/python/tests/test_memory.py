"""Streams of any length in bounded memory."""

from __future__ import annotations

import json
import subprocess
import sys

CODE = """
import json, re, sys
import numpy, pyarrow as pa
from volley_client import Client

ROWS, BATCHES = 4096, 150  # of 64 numbers of 4 bytes: 150 MiB
pixels = pa.FixedSizeListArray.from_arrays(pa.array(numpy.zeros(ROWS * 64, "float32")), 64)

def batches():
    for number in range(BATCHES):
        # A copy, so that each batch would need its own memory.
        copy = pa.FixedSizeListArray.from_arrays(pa.array(pixels.flatten().to_numpy().copy()), 64)
        yield pa.record_batch({{"pixels": copy}})

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

rows, seen = 0, []
with Client({urls!r}) as client:
    stream = client.predict_stream("classifier", batches(), batch_size=ROWS, transport={transport!r})
    for batch in stream:
        rows += batch.num_rows
        seen.append(resident())
print(json.dumps({{"rows": rows, "early": max(seen[:15]), "all": max(seen)}}))
"""


def test_a_long_stream_needs_no_more_memory_than_a_short_one(cluster, transport):
    code = CODE.format(urls=cluster.urls, transport=transport)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["rows"] == 4096 * 150
    assert found["all"] - found["early"] < 50, f"MiB: {found}"
