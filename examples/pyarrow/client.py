"""Volley over Arrow Flight, from Python with nothing but pyarrow.

Runs every part of docs/reference/flight.md against a node and prints one JSON line per step:

    python client.py --uri grpc://127.0.0.1:8815 --model storyteller --tensor-model double

The exit status is 1 when a step did not go as the protocol says. Needs pyarrow 26.0.1.
"""

import argparse
import json
import struct
import sys
import time
import uuid

import pyarrow as pa
from pyarrow import flight

END = b"end"

# No step may wait for ever.
OPTIONS = flight.FlightCallOptions(timeout=60)

# Without it a path describes the model as a function; see docs/reference/sql-functions.md.
ROWS = flight.FlightCallOptions(timeout=60, headers=[(b"volley-call", b"rows")])


# --- The two doors: a path with the model's name, or a PredictCommand. ---


def path_descriptor(model):
    """The plain door: everything but the model's name has its default."""
    return flight.FlightDescriptor.for_path(model)


def command_descriptor(model, *, timeout_ms=0, parameters=None, end_marker=True):
    """The full door: b"VLY1" and a protobuf PredictCommand, written by hand."""
    message = field_text(1, model) + field_text(3, uuid.uuid4().hex)
    message += field_varint(4, timeout_ms) + field_varint(9, int(end_marker))
    for name, value in (parameters or {}).items():
        message += field_bytes(8, field_text(1, name) + field_bytes(2, param_value(value)))
    return flight.FlightDescriptor.for_command(b"VLY1" + message)


def param_value(value):
    if isinstance(value, bool):
        return tag(1, 0) + varint(int(value))
    if isinstance(value, int):
        return tag(2, 0) + varint(value & (2**64 - 1))
    if isinstance(value, float):
        return tag(3, 1) + struct.pack("<d", value)
    if isinstance(value, str):
        return field_bytes(4, value.encode())
    return field_bytes(5, json.dumps(value).encode())


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(number, wire_type):
    return varint(number << 3 | wire_type)


def field_varint(number, value):
    return tag(number, 0) + varint(value) if value else b""


def field_bytes(number, value):
    return tag(number, 2) + varint(len(value)) + value


def field_text(number, value):
    return field_bytes(number, value.encode())


def error_detail(error):
    """The ErrorDetail of a failed call: its code, retry_after_ms, origin and request_id."""
    names = {1: "code", 2: "retry_after_ms", 3: "origin", 4: "request_id"}
    data, at, detail = error.extra_info or b"", 0, {}
    while at < len(data):
        key, at = read_varint(data, at)
        value, at = read_varint(data, at)
        if key & 7 == 2:
            value, at = data[at : at + value].decode(), at + value
        detail[names.get(key >> 3, key >> 3)] = value
    return detail


def read_varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


# --- Rows. ---


def prompts(*texts):
    return pa.record_batch({"prompt": pa.array(texts, pa.utf8())})


def sample_rows(schema, rows):
    """A batch of `schema` with small values, whatever its columns are."""
    columns = [sample_array(field.type, rows) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def sample_array(kind, rows):
    if isinstance(kind, pa.BaseExtensionType):
        storage = sample_array(kind.storage_type, rows)
        return pa.ExtensionArray.from_storage(kind, storage)
    return pa.array([sample_value(kind)] * rows, kind)


def sample_value(kind):
    if pa.types.is_fixed_size_list(kind):
        return [sample_value(kind.value_type)] * kind.list_size
    if pa.types.is_list(kind):
        return [sample_value(kind.value_type)]
    if pa.types.is_struct(kind):
        return {field.name: sample_value(field.type) for field in kind}
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "a"
    if pa.types.is_boolean(kind):
        return True
    return 1


def text_of(batches):
    """The text of each item of a generation, in the order of the items."""
    texts = {}
    for batch in batches:
        for row in batch.to_pylist():
            texts.setdefault(row["item"], []).append(row["text"] or "")
    return ["".join(texts[item]) for item in sorted(texts)]


def check_generation(batches):
    """Sequences have no gap, and exactly the last row says that it is the last."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    expect(rows, "the answer has rows")
    sequences = [row["sequence"] for row in rows]
    expect(sequences == list(range(len(rows))), f"sequences without a gap: {sequences}")
    lasts = [row["last"] for row in rows]
    expect(lasts == [False] * (len(rows) - 1) + [True], "only the last row is the last")
    return rows


# --- Exchanges. ---


def read_all(reader):
    batches = []
    while True:
        try:
            batches.append(reader.read_chunk().data)
        except StopIteration:
            return [batch for batch in batches if batch is not None]


def exchange(client, descriptor, batches, *, mark_end=False):
    """Sends all batches, then reads the whole answer."""
    writer, reader = client.do_exchange(descriptor, OPTIONS)
    with writer:
        writer.begin(batches[0].schema)
        for batch in batches:
            writer.write_batch(batch)
        if mark_end:
            writer.write_metadata(END)
        writer.done_writing()
        return read_all(reader)


# --- Steps. Each returns what is printed; `expect` fails it. ---


class Mismatch(Exception):
    pass


def expect(condition, what):
    if not condition:
        raise Mismatch(what)


def refused(code, text, call, *args, **kwargs):
    """The call must fail with `code`, and say `text`."""
    try:
        call(*args, **kwargs)
    except flight.FlightError as error:
        detail = error_detail(error)
        expect(detail.get("code") == code, f"the code is {code}: {detail}")
        expect(text in str(error), f"the message says '{text}': {error}")
        return {"error": type(error).__name__, "code": code}
    raise Mismatch(f"this is refused as {code}")


def discovery(client, args, model):
    listed = [info.descriptor.path[0].decode() for info in client.list_flights()]
    expect(model in listed, f"{model} is listed: {listed}")
    given = client.get_schema(path_descriptor(model)).schema
    output = flight.FlightDescriptor.for_path(model, "output")
    answered = client.get_schema(output).schema
    info = client.get_flight_info(path_descriptor(model), ROWS)
    inputs = int(info.schema.metadata[b"volley.inputs"])
    expect(info.schema.names == given.names + answered.names, "one schema describes both")
    expect(inputs == len(given.names), "and says how many of its columns are inputs")
    (health,) = client.do_action(flight.Action("health", b""))
    expect(json.loads(health.body.to_pybytes())["status"] == "ok", "the node is healthy")
    return {"models": listed, "inputs": given.names, "outputs": answered.names}


def unknown_model(client, args):
    descriptor = path_descriptor("no-such-model")
    return refused("not_found", "no-such-model", exchange, client, descriptor, [prompts("x")])


def one_batch(client, args):
    rows = check_generation(
        exchange(client, path_descriptor(args.model), [prompts("Once upon a time")])
    )
    return {"rows": len(rows), "finish_reason": rows[-1]["finish_reason"]}


def one_batch_by_command(client, args):
    descriptor = command_descriptor(
        args.model, timeout_ms=60_000, parameters=args.parameters
    )
    batches = exchange(client, descriptor, [prompts("Once upon a time")], mark_end=True)
    rows = check_generation(batches)
    return {"rows": len(rows), "messages": len(batches), "text": text_of(batches)[0][:80]}


def many_batches(client, args):
    """Several batches are one request; their rows are items 0, 1, 2, ..."""
    batches = [prompts("Once"), prompts("A dog", "The sun")]
    answer = exchange(
        client,
        command_descriptor(args.model, timeout_ms=60_000, parameters=args.parameters),
        batches,
        mark_end=True,
    )
    rows = [row for batch in answer for row in batch.to_pylist()]
    expect([row["last"] for row in rows].count(True) == 1, "one row is the last")
    expect(rows[-1]["last"], "and it comes last")
    return {"rows": len(rows), "items": sorted({row["item"] for row in rows})}


def tensors(client, args):
    model = args.tensor_model
    schema = client.get_schema(path_descriptor(model)).schema
    output = client.get_schema(flight.FlightDescriptor.for_path(model, "output")).schema
    answer = exchange(client, path_descriptor(model), [sample_rows(schema, 3)])
    expect(sum(batch.num_rows for batch in answer) == 3, "one row for each row")
    expect(answer[0].schema.names == output.names, "of the schema that was announced")
    return {"inputs": str(schema), "outputs": str(answer[0].schema), "rows": 3}


def tensors_streamed(client, args):
    """Answers to the first batches come before the last batch is sent."""
    model = args.tensor_model
    schema = client.get_schema(path_descriptor(model)).schema
    writer, reader = client.do_exchange(
        command_descriptor(model, timeout_ms=60_000), OPTIONS
    )
    rows = 0
    with writer:
        writer.begin(schema)
        for count in (1, 2, 3):
            writer.write_batch(sample_rows(schema, count))
            wanted = rows + count
            while rows < wanted:
                rows += reader.read_chunk().data.num_rows
        writer.write_metadata(END)
        writer.done_writing()
        expect(not read_all(reader), "nothing follows")
    return {"rows": rows}


def cancel(client, args):
    descriptor = command_descriptor(args.model, parameters=args.parameters)
    writer, reader = client.do_exchange(descriptor, OPTIONS)
    writer.begin(prompts().schema)
    writer.write_batch(prompts("Once upon a time"))
    writer.write_metadata(END)
    reader.read_chunk()
    start = time.monotonic()
    reader.cancel()
    try:
        read_all(reader)
        outcome = "complete before the cancel"
    except flight.FlightCancelledError:
        outcome = "cancelled"
    elapsed_ms = round((time.monotonic() - start) * 1000, 1)
    expect(elapsed_ms < 500, f"a cancel ends the call at once, not after {elapsed_ms} ms")
    return {"outcome": outcome, "elapsed_ms": elapsed_ms}


def missing_end_marker(client, args):
    """A client that promises the end marker and stops without it has failed."""
    descriptor = command_descriptor(args.model, timeout_ms=60_000)
    batches = [prompts("Once upon a time")]
    return refused("cancelled", "end marker", exchange, client, descriptor, batches)


def wrong_column(client, args):
    rows = pa.record_batch({"no_such_column": pa.array([1])})
    descriptor = path_descriptor(args.model)
    return refused("invalid_input", "no_such_column", exchange, client, descriptor, [rows])


def bad_command(client, args):
    descriptor = flight.FlightDescriptor.for_command(b"not a command")
    return refused("invalid_input", "VLY1", exchange, client, descriptor, [prompts("x")])


def error_mid_stream(client, args):
    """The scripted backend fails after two chunks: both arrive, then the error."""
    parameters = {"chunks": 5, "delay_ms": 20, "fail_after": 2, "fail_code": "upstream_failed"}
    descriptor = command_descriptor(args.error_model, parameters=parameters)
    writer, reader = client.do_exchange(descriptor, OPTIONS)
    writer.begin(prompts().schema)
    writer.write_batch(prompts("x"))
    writer.write_metadata(END)
    writer.done_writing()
    rows = 0
    try:
        while True:
            rows += reader.read_chunk().data.num_rows
    except StopIteration:
        raise Mismatch("an error is not a normal end") from None
    except flight.FlightError as error:
        expect(rows == 2, f"both chunks before the error arrived, not {rows}")
        detail = error_detail(error)
        expect(detail.get("code") == "upstream_failed", f"the details name the code: {detail}")
        return {"rows": rows, "error": type(error).__name__, **detail}


def parse_parameter(text):
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--uri", required=True, help="grpc://host:port")
    parser.add_argument("--model", help="a generation model")
    parser.add_argument("--tensor-model", help="a model of tensors")
    parser.add_argument("--error-model", help="a model of the scripted (fake) backend")
    parser.add_argument(
        "--parameter", action="append", default=[], metavar="NAME=VALUE",
        help="a parameter of the generation calls, for example max_tokens=32",
    )
    args = parser.parse_args()
    args.parameters = dict(map(parse_parameter, args.parameter))

    steps = [("unknown_model", unknown_model), ("bad_command", bad_command)]
    if args.model:
        generation = [one_batch, one_batch_by_command, many_batches, cancel]
        generation += [missing_end_marker, wrong_column]
        steps.append(("discovery", lambda c, a: discovery(c, a, a.model)))
        steps += [(step.__name__, step) for step in generation]
    if args.tensor_model:
        steps.append(("tensor_discovery", lambda c, a: discovery(c, a, a.tensor_model)))
        steps += [("tensors", tensors), ("tensors_streamed", tensors_streamed)]
    if args.error_model:
        steps.append(("error_mid_stream", error_mid_stream))

    failed = False
    with flight.connect(args.uri) as client:
        for name, step in steps:
            try:
                line = {"step": name, "ok": True, **step(client, args)}
            except Exception as error:  # Each step is reported, whatever it fails with.
                failed = True
                line = {"step": name, "ok": False, "error": f"{type(error).__name__}: {error}"}
            print(json.dumps(line), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
