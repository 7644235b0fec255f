"""Sends rows to a pipeline over Flight one by one; the second only when the first is answered.

    python flight.py grpc://127.0.0.1:8421 pipeline
"""

import json
import sys

import pyarrow as pa
from pyarrow import flight

uri, model = sys.argv[1:]
options = flight.FlightCallOptions(timeout=30)
client = flight.connect(uri)
listed = any(info.descriptor.path == [model.encode()] for info in client.list_flights())

schema = pa.schema([("prompt", pa.string())])
descriptor = flight.FlightDescriptor.for_path(model)
writer, reader = client.do_exchange(descriptor, options=options)
writer.begin(schema)
rows = []


def read():
    chunk = reader.read_chunk()
    rows.extend(chunk.data.to_pylist())


writer.write_batch(pa.record_batch([["one two"]], schema=schema))
while not any(row["item"] == 0 and row["text"] for row in rows):
    read()
writer.write_batch(pa.record_batch([["three four"]], schema=schema))
writer.done_writing()
try:
    while True:
        read()
except StopIteration:
    pass

texts = ["", ""]
for row in rows:
    texts[row["item"]] += row["text"] or ""
assert [row["last"] for row in rows].count(True) == 1 and rows[-1]["last"], rows
print(
    json.dumps(
        {
            "texts": [text.strip() for text in texts],
            "sequence_is_whole": [row["sequence"] for row in rows] == list(range(len(rows))),
            "listed": listed,
        }
    )
)
