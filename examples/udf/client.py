"""Models as functions, called as RisingWave, Databend and DuckDB's Airport call them.

    python client.py --uri 127.0.0.1:8421

Prints one line a step; the exit status is 1 when one failed. The judges are the packages
`arrow-udf` (its server answers the same calls beside Volley, and both must agree) and
`databend-udf` (its client calls Volley). DuckDB's Airport comes as an extension of DuckDB, so
here pyarrow sends what it sends. Needs scripts/get-udf.sh.
"""

import argparse
import contextlib
import io
import json
import logging
import socket
import sys
import threading

import msgpack
import pyarrow as pa
from pyarrow import flight

import arrow_udf
import databend_udf
from databend_udf.udf import _arrow_field_to_string as databend_type

logging.disable(logging.CRITICAL)

# No step may wait for ever.
LIMIT_S = 60


class Mismatch(Exception):
    pass


def expect(condition, what):
    if not condition:
        raise Mismatch(what)


def options(headers=(), key=None):
    headers = [(name.encode(), value.encode()) for name, value in headers]
    if key:
        headers.append((b"authorization", b"Bearer " + key.encode()))
    return flight.FlightCallOptions(timeout=LIMIT_S, headers=headers)


def refused(error_type, text, call, *args):
    """The call must fail, as this type, and say `text`."""
    try:
        call(*args)
    except error_type as error:
        expect(text in str(error), f"the message says '{text}': {error}")
        return error
    raise Mismatch(f"this is refused with '{text}'")


def texts(values, *, name="", kind=pa.utf8()):
    return pa.RecordBatch.from_arrays([pa.array(values, kind)], names=[name])


# --- Arrow UDF, version 2: what RisingWave speaks. Its columns have no names. ---


@arrow_udf.udf(input_types=["VARCHAR"], result_type="REAL[]", name="text-embed", batch=True)
def reference_embed(texts):
    return [None if text is None else [0.0, 0.0] for text in texts]


@contextlib.contextmanager
def reference_server():
    """The server of the package `arrow-udf`, with a function like the one that is judged."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with contextlib.redirect_stdout(io.StringIO()):
        server = arrow_udf.UdfServer(location=f"127.0.0.1:{port}")
        server.add_function(reference_embed)
    # Not its `serve`, which wants the main thread for a signal.
    serving = threading.Thread(target=super(arrow_udf.UdfServer, server).serve, daemon=True)
    serving.start()
    try:
        with flight.connect(f"grpc://127.0.0.1:{port}") as client:
            client.wait_for_available(timeout=10)
            yield client
    finally:
        server.shutdown()


def described(info):
    """What RisingWave reads of a function when it is created."""
    fields = list(info.schema)
    args, results = fields[: info.total_records], fields[info.total_records :]
    return {
        "args": [str(field.type) for field in args],
        "results": [str(field.type) for field in results],
        "endpoints": len(info.endpoints),
    }


def interleaved(client, name, batches, call_options):
    """Sends one batch after the other, and reads the answer to each before the next."""
    descriptor = flight.FlightDescriptor.for_path(name)
    writer, reader = client.do_exchange(descriptor, call_options)
    answers = []
    with writer:
        writer.begin(batches[0].schema)
        kind = reader.schema.types
        for batch in batches:
            writer.write_batch(batch)
            answers.append(reader.read_chunk().data)
        writer.done_writing()
        expect(not list(reader), "nothing follows")
    return kind, answers


def arrow_udf_agrees_with_its_own_server(client, args):
    name = "text-embed"
    batches = [texts(["a dog", None]), texts([]), texts(["a cat"])]
    seen = []
    with reference_server() as reference:
        for server in (client, reference):
            opts = options(key=args.key if server is client else None)
            (version,) = server.do_action(flight.Action("protocol_version", b""), opts)
            path = flight.FlightDescriptor.for_path(name)
            listed = {info.descriptor.path[0].decode(): info for info in server.list_flights(options=opts)}
            info = server.get_flight_info(path, opts)
            kind, answers = interleaved(server, name, batches, opts)
            seen.append({
                "version": version.body.to_pybytes(),
                "listed": described(listed[name]),
                "described": described(info),
                "answer": [str(kind) for kind in kind],
                "rows": [answer.num_rows for answer in answers],
                "nulls": [answer.column(0).null_count for answer in answers],
            })
    expect(seen[0] == seen[1], f"both say the same: {seen}")
    return seen[0]["described"]


def arrow_udf_calls_every_task(client, args):
    """The result's type in RisingWave's words, for each kind of model."""
    wanted = {
        "storyteller": ([["Tell me a story."]], "VARCHAR"),
        "text-embed": ([["a dog", "a cat"]], "REAL[]"),
        "text-rerank": ([["a dog", "a dog"], ["a cat", "a hound"]], "REAL"),
        "text-classify": ([["what a day", "oh no"]], "VARCHAR"),
        "text-tokens": ([["Ada lives in Paris"]], "VARCHAR"),
        "text-sparse": ([["a dog"]], "VARCHAR"),
        "classifier": ([[[0.0] * 64]], None),
    }
    told = {}
    for name, (columns, kind) in wanted.items():
        path = flight.FlightDescriptor.for_path(name)
        info = client.get_flight_info(path, options(key=args.key))
        fields = list(info.schema)[: info.total_records]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, fields)]
        expect(len(arrays) == len(fields), f"{name} takes {len(columns)} arguments")
        batch = pa.RecordBatch.from_arrays(arrays, names=[""] * len(arrays))
        (got,), (answer,) = interleaved(client, name, [batch], options(key=args.key))
        if kind:
            expect(got == arrow_udf._to_data_type(kind), f"{name} gives {kind}, not {got}")
        expect(answer.num_rows == len(columns[0]), f"{name} gives a value a row")
        expect(answer.column(0).null_count == 0, f"{name} gives values")
        told[name] = str(got)
    return told


def options_come_with_the_name(client, args):
    name = "storyteller?max_tokens=3"
    _, (short,) = interleaved(client, name, [texts(["Tell me"])], options(key=args.key))
    _, (long,) = interleaved(client, "storyteller", [texts(["Tell me"])], options(key=args.key))
    short, long = short.column(0)[0].as_py(), long.column(0)[0].as_py()
    expect(long.startswith(short) and len(short) < len(long), f"{short!r} begins {long!r}")
    return {"short": short}


def a_large_batch_keeps_its_order(client, args):
    rows = [[index % 7 / 7] * 64 for index in range(5000)]
    column = pa.array(rows, pa.list_(pa.float32()))
    batch = pa.RecordBatch.from_arrays([column], names=["arg1"])
    descriptor = flight.FlightDescriptor.for_path("classifier")
    writer, reader = client.do_exchange(descriptor, options(key=args.key))
    with writer:
        writer.begin(batch.schema)
        writer.write_batch(batch)
        writer.done_writing()
        answer = reader.read_all().to_pydict()
    (column,) = answer.values()
    expect(len(column) == len(rows), "a value a row")

    def same(left, right):
        pairs = zip(left["probabilities"], right["probabilities"])
        return all(abs(a - b) < 1e-4 for a, b in pairs)

    expect(not same(column[0], column[6]), "rows differ")
    expect(all(same(column[i], column[i % 7]) for i in range(len(rows))), "in their order")
    return {"rows": len(column)}


def arrow_udf_errors(client, args):
    def call(name, batch):
        return interleaved(client, name, [batch], options(key=args.key))

    refused(flight.FlightError, "no-such-model", call, "no-such-model", texts(["x"]))
    wrong = pa.RecordBatch.from_arrays([pa.array([1])], names=[""])
    refused(flight.FlightError, "has the arguments (Utf8)", call, "text-embed", wrong)
    refused(flight.FlightError, "name=value", call, "text-embed?oops", texts(["x"]))
    return {"refused": 3}


# --- Databend: the client of its package, and its own headers and types. ---


def databend_client(args):
    host, _, port = args.uri.partition(":")
    return databend_udf.UDFClient(host=host, port=int(port))


def databend_finds_the_server(client, args):
    databend = databend_client(args)
    expect(databend.health_check(), "builtin_healthy says 1")
    expect(databend.echo("hällo") == "hällo", "builtin_echo says the same")
    names = databend.list_functions()
    expect(names == ["builtin_echo", "builtin_healthy"], f"both are listed: {names}")
    return {"listed": names}


def databend_creates_and_calls(client, args):
    databend = databend_client(args)
    fields = list(databend.get_function_info("text-embed").schema)
    kinds = [databend_type(field) for field in fields]
    expect(kinds == ["VARCHAR", "ARRAY(FLOAT)"], f"the types of CREATE FUNCTION: {kinds}")
    (one,) = databend.call_function("text-embed", "a dog")
    many = databend.call_function_batch("text-embed", arg1=["a dog", None, "a cat"])
    expect(many[0] == one and many[1] is None, "the same vector, and null for null")
    scores = databend.call_function_batch("text-rerank", arg1=["dog"] * 2, arg2=["dog", "sun"])
    expect(len(scores) == 2, "a score a pair")
    return {"types": kinds, "dimensions": len(one)}


def databend_sends_its_headers_and_many_batches(client, args):
    """As the query node does: large strings, names of its own, several batches, then the end."""
    headers = [
        ("x-databend-tenant", "default"),
        ("x-databend-query-id", "q1"),
        ("x-databend-function", "embed"),
        ("x-databend-function-handler", "text-embed"),
        ("databend-stage-mapping", "[]"),
    ]
    batches = [texts([f"row {n}"] * 9, name="arg1", kind=pa.large_utf8()) for n in range(5)]
    descriptor = flight.FlightDescriptor.for_path("text-embed")
    writer, reader = client.do_exchange(descriptor, options(headers, args.key))
    with writer:
        writer.begin(batches[0].schema)
        for batch in batches:
            writer.write_batch(batch)
        writer.done_writing()
        answer = reader.read_all()
    expect(answer.num_rows == 45 and answer.num_columns == 1, f"45 values: {answer.num_rows}")
    return {"rows": answer.num_rows}


def databend_errors(client, args):
    databend = databend_client(args)
    refused(flight.FlightError, "no-such-model", databend.call_function, "no-such-model", "x")
    refused(ValueError, "expects 2 arguments", databend.call_function, "text-rerank", "x")
    return {"refused": 2}


# --- DuckDB's Airport: a catalogue, then one long exchange for each thread. ---


def airport_headers(catalog, operation=None):
    headers = [
        ("airport-user-agent", "airport/20250723"),
        ("airport-client-session-id", "e5d7"),
        ("airport-catalog", catalog),
    ]
    if operation:
        headers += [
            ("airport-trace-id", "77aa"),
            ("airport-operation", operation),
            ("return-chunks", "1"),
        ]
    return headers


def action(client, name, args):
    body = msgpack.packb({"catalog_name": "attached"})
    headers = options(airport_headers("attached"), args.key)
    (result,) = client.do_action(flight.Action(name, body), headers)
    return msgpack.unpackb(result.body.to_pybytes())


def airport_catalogue(client, args):
    """The functions of each schema, as DuckDB loads them after ATTACH."""
    expect(action(client, "create_transaction", args) == {"identifier": None}, "no transaction")
    version = action(client, "catalog_version", args)
    length, frame = action(client, "list_schemas", args)
    root = pa.decompress(frame, decompressed_size=length, codec="zstd", asbytes=True)
    root = msgpack.unpackb(root)
    expect(root["version_info"] == version, "the version is the catalogue's")
    functions = {}
    for schema in root["schemas"]:
        filters = [
            ("airport-list-flights-filter-catalog", "attached"),
            ("airport-list-flights-filter-schema", schema["name"]),
        ]
        headers = options(airport_headers("attached") + filters, args.key)
        for info in client.list_flights(options=headers):
            entry = msgpack.unpackb(info.app_metadata)
            expect(entry["catalog"] == "attached" and entry["schema"] == schema["name"], "ours")
            expect(entry["type"] == "scalar_function", "a scalar function")
            given = pa.ipc.read_schema(pa.py_buffer(entry["input_schema"]))
            functions[entry["name"]] = (info.descriptor, given, info.schema)
    return functions


def airport_attaches(client, args):
    functions = airport_catalogue(client, args)
    descriptor, given, result = functions["text-embed"]
    expect(given.types == [pa.utf8()], f"one text in: {given}")
    expect(result.types == [pa.list_(pa.float32())], f"one vector out: {result}")
    return {"functions": sorted(functions)}


def airport_calls(client, args):
    """One exchange, of which the schema is read first, then one answer for each chunk."""
    descriptor, given, result = airport_catalogue(client, args)["text-embed"]
    headers = airport_headers("attached", "scalar_function")
    headers.append(("airport-flight-path", "text-embed"))
    writer, reader = client.do_exchange(descriptor, options(headers, args.key))
    with writer:
        writer.begin(given)
        expect(reader.schema.equals(result), "the schema that was announced, before any row")
        for rows in (2048, 1, 2047):
            values = [None if row == 1 else f"text {row % 11}" for row in range(rows)]
            writer.write_batch(pa.RecordBatch.from_arrays([pa.array(values)], schema=given))
            answer = reader.read_chunk().data
            expect(answer.num_rows == rows, f"one answer for a chunk: {answer.num_rows} of {rows}")
            expect(answer.column(0).null_count == (rows > 1), "null for null")
        writer.done_writing()
    return {"chunks": 3}


def airport_calls_over_columns(client, args):
    """A classifier of a table: numbers as wide as DuckDB has them, a label and probabilities out."""
    descriptor, given, result = airport_catalogue(client, args)["sklearn-columns"]
    expect(given.types == [pa.float64(), pa.float64(), pa.utf8()], f"columns: {given}")
    headers = airport_headers("attached", "scalar_function")
    writer, reader = client.do_exchange(descriptor, options(headers, args.key))
    with writer:
        writer.begin(given)
        expect(reader.schema.equals(result), "the schema that was announced")
        people = [
            pa.array([22.0, 38.0, None]),
            pa.array([7.25, 171.2833, 8.05]),
            pa.array(["Southampton", "Cherbourg", "Cork"]),
        ]
        writer.write_batch(pa.RecordBatch.from_arrays(people, schema=given))
        answer = reader.read_chunk().data.column(0).to_pylist()
        writer.done_writing()
    expect([row and row["output_label"] for row in answer] == [0, 1, None], f"labels: {answer}")
    chances = answer[1]["output_probability"]
    expect(len(chances) == 2 and chances[1] > 0.5, f"probabilities by class: {chances}")
    return {"rows": len(answer)}


def airport_errors(client, args):
    def exception(error):
        return msgpack.unpackb(error.extra_info)

    def call(name, operation, rows):
        descriptor = flight.FlightDescriptor.for_path(name)
        headers = options(airport_headers("attached", operation), args.key)
        writer, reader = client.do_exchange(descriptor, headers)
        with writer:
            writer.begin(rows.schema)
            writer.write_batch(rows)
            writer.done_writing()
            reader.read_all()

    told = []
    for name, operation, text in [
        ("no-such-model", "scalar_function", "no-such-model"),
        ("text-rerank", "scalar_function", "has the arguments (Utf8, Utf8)"),
        ("text-embed", "table_function_in_out", "scalar functions"),
    ]:
        error = refused(flight.FlightError, text, call, name, operation, texts(["x"]))
        told.append(exception(error)["exception_type"])
        expect(text in exception(error)["message"], "the exception says it too")
    expect(told == ["InvalidInputException"] * 3, f"exceptions of DuckDB's: {told}")
    return {"exceptions": told}


STEPS = [
    arrow_udf_agrees_with_its_own_server,
    arrow_udf_calls_every_task,
    options_come_with_the_name,
    a_large_batch_keeps_its_order,
    arrow_udf_errors,
    databend_finds_the_server,
    databend_creates_and_calls,
    databend_sends_its_headers_and_many_batches,
    databend_errors,
    airport_attaches,
    airport_calls,
    airport_calls_over_columns,
    airport_errors,
]

# The client of Databend's package sends no key.
KEYED = [step for step in STEPS if not step.__name__.startswith("databend_")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--uri", required=True, help="host:port of a coordinator's Flight")
    parser.add_argument("--key", help="an API key")
    parser.add_argument("--authority", help="a file with the authority of the node's certificate")
    args = parser.parse_args()
    scheme, tls = "grpc", {}
    if args.authority:
        with open(args.authority, "rb") as file:
            scheme, tls = "grpc+tls", {"tls_root_certs": file.read()}
    failed = False
    with flight.connect(f"{scheme}://{args.uri}", **tls) as client:
        for step in KEYED if args.key else STEPS:
            try:
                line = {"step": step.__name__, "ok": True, **step(client, args)}
            except Exception as error:  # Each step is reported, whatever it fails with.
                failed = True
                line = {"step": step.__name__, "ok": False, "error": f"{type(error).__name__}: {error}"}
            print(json.dumps(line, ensure_ascii=False), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
