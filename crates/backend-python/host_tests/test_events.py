"""Models that stream events of columns."""

import json
import os
import socket
import time
import types
import unittest
from array import array

from support import MLSERVER, PYARROW, HostTest, wire
from volley_host.events import Event
from volley_host.outbox import Outbox

TOKENS = '''
    from typing import Iterator, TypedDict
    class Token(TypedDict):
        token: str
        score: float
    def stream(prompt: str, *, limit: int = 100) -> Iterator[Token]:
        """Splits a prompt."""
        try:
            for number, word in enumerate(prompt.split()[:limit]):
                yield {"token": word, "score": number / 2}
        finally:
            print("closed", flush=True)
'''


def prompts(*texts):
    """The column of the prompts."""
    return [wire.text_column("prompt", "utf8", texts)]


def buffered(column):
    """The same column with its buffers, as it comes from a frame."""
    return wire.Column(column.name, column.type, column.shape, column.rows, column.buffers,
                       column.valid, column.dims)


class Joined(unittest.TestCase):
    """Events of one message."""

    def test_joined_columns_have_the_values_of_all(self):
        texts = [["a", None], ["", "long text"], ["ä"]]
        columns = [wire.text_column("t", "utf8", values) for values in texts]
        for parts in (columns, list(map(buffered, columns)),
                      [columns[0], buffered(columns[1]), columns[2]]):
            joined = wire.join(parts)
            self.assertEqual((joined.rows, joined.values()),
                             (5, ["a", None, "", "long text", "ä"]))
            self.assertEqual(joined.slice(1, 4).values(), [None, "", "long text"])
            self.assertEqual(joined.size(), buffered(joined).size())

    def test_numbers_and_shapes_are_joined(self):
        def numbers(values, valid=None):
            data = array("i", values).tobytes()
            return wire.Column("n", "int32", (2,), len(values) // 2, [data], valid)

        joined = wire.join([numbers([1, 2]), numbers([3, 4, 5, 6], b"\1\0")])
        self.assertEqual(joined.values(), [[1, 2], [3, 4], None])

        def ragged(*rows):
            data = array("i", [value for row in rows for value in row]).tobytes()
            dims = array("q", map(len, rows)).tobytes()
            return wire.Column("r", "int32", (-1,), len(rows), [data], None, dims)

        parts = [ragged([1]), ragged([], [2, 3])]
        self.assertEqual(wire.join(parts).values(), [[1], [], [2, 3]])
        self.assertFalse(wire.can_join(parts[0], numbers([1, 2])))

    def test_what_is_ready_travels_in_one_message(self):
        text = wire.text_column("t", "utf8", ["x"])
        ours, theirs = socket.socketpair()
        outbox = Outbox(ours)
        stream = types.SimpleNamespace(id=7, credit=3, unsent=None)
        with outbox.lock:
            # Written at once only after a pause.
            outbox._written = time.monotonic() + 60
            sent = [outbox.event(stream, Event([text])) for _ in range(4)]
        self.assertEqual((sent, stream.credit), ([True, True, True, False], 0))
        outbox.put({"op": "end", "id": 7}, flush=True)
        (rows, end), body = wire.Reader(theirs).read()
        self.assertEqual((rows["rows"], rows["events"], rows["credit"]), (3, [1, 1, 1], 3))
        self.assertEqual(wire.decode_columns(rows, body)["t"].values(), ["x"] * 3)
        self.assertEqual(end["op"], "end")
        ours.close()
        theirs.close()


class Plain(HostTest):
    def declared(self, client, what="outputs"):
        return [(one["name"], one["type"], one["shape"]) for one in client.loaded[what]]

    def test_each_value_is_an_event(self):
        client = self.model(TOKENS)
        self.assertEqual((client.loaded["task"], client.loaded["description"]),
                         ("events", "Splits a prompt."))
        self.assertEqual(self.declared(client), [("token", "utf8", []), ("score", "fp64", [])])
        self.assertEqual(self.declared(client, "inputs"), [("prompt", "utf8", [])])
        self.assertEqual(client.loaded["parameters"], ["limit"])
        answer = client.call(1, prompts("a b c"), limit=2)
        client.finish(answer)
        self.assertEqual(answer.end["op"], "end")
        self.assertEqual([columns["token"].values() for columns in answer.columns], [["a"], ["b"]])
        self.assertEqual(answer.values("score"), [0.0, 0.5])

    def test_the_first_event_does_not_wait_for_the_second(self):
        client = self.model('''
            import os, time
            outputs = [{"name": "n", "type": "int64", "shape": []}]
            def stream(path: str):
                yield {"n": 1}
                while not os.path.exists(path):
                    time.sleep(0.001)
                yield {"n": 2}
        ''')
        path = os.path.join(client.directory, "go")
        answer = client.call(1, [wire.text_column("path", "utf8", [path])])
        client.wait(lambda: answer.values("n") == [1])
        open(path, "w").close()
        client.finish(answer)
        self.assertEqual(answer.values("n"), [1, 2])

    def test_asynchronous_generators_objects_and_declared_outputs(self):
        client = self.model('''
            import asyncio
            from dataclasses import dataclass
            from typing import AsyncIterator, List, Optional
            @dataclass
            class Step:
                names: List[str]
                value: Optional[float] = None
            class Model:
                async def predict(self, n: int) -> AsyncIterator[Step]:
                    for number in range(n):
                        await asyncio.sleep(0)
                        yield Step(["x"] * (number + 1), None if number else 1.5)
        ''')
        self.assertEqual(self.declared(client), [("names", "utf8", []), ("value", "fp64", [])])
        answer = client.call(1, [wire.Column("n", "int64", (), 1, [array("q", [1]).tobytes()])])
        client.finish(answer)
        self.assertEqual((answer.values("names"), answer.values("value")), (["x"], [1.5]))
        wrong = client.call(2, [wire.Column("n", "int64", (), 1, [array("q", [2]).tobytes()])])
        client.finish(wrong)
        self.assertIn("different numbers of rows: names 2, value 1", wrong.error()[1])

    def test_a_value_is_the_column_output(self):
        client = self.model('''
            from typing import Iterator
            def squares(n: int) -> Iterator[int]:
                for number in range(n):
                    yield number * number
        ''', function="squares")
        self.assertEqual(self.declared(client), [("output", "int64", [])])
        answer = client.call(1, [wire.Column("n", "int64", (), 1, [array("q", [3]).tobytes()])])
        client.finish(answer)
        self.assertEqual(answer.values("output"), [0, 1, 4])

    def test_an_event_with_other_columns_ends_the_stream(self):
        cases = {
            '{"tokn": "b", "score": 1.0}': "missing: token; added: tokn",
            '{"token": 7, "score": 1.0}': "'token' of the model has a value of the type int",
            '{"token": [], "score": []}': "an event without rows",
            '7': "missing: token, score",
        }
        for second, expected in cases.items():
            client = self.model('''
                outputs = [{"name": "token", "type": "utf8"}, {"name": "score", "type": "fp64"}]
                def stream(prompt: str):
                    yield {"token": "a", "score": 0.5}
                    yield %s
            ''' % second)
            answer = client.call(1, prompts("x"))
            client.finish(answer)
            self.assertEqual(answer.values("token"), ["a"])
            code, message = answer.error()
            self.assertEqual(code, "internal")
            self.assertIn(expected, message)

    def test_credit_stops_a_fast_generator_and_cancel_closes_it(self):
        for source in (TOKENS, TOKENS.replace("def stream", "async def stream").replace(
                "Iterator", "AsyncIterator")):
            client = self.model(source)
            answer = client.call(1, prompts("x " * 1_000), credit=5, limit=1_000)
            client.wait(lambda: len(answer.values("token")) == 5)
            self.assertTrue(client.quiet(0.05))
            client.send({"op": "credit", "id": 1, "rows": 2})
            client.wait(lambda: len(answer.values("token")) == 7)
            client.send({"op": "cancel", "id": 1})
            client.finish(answer)
            self.assertEqual(answer.error()[0], "cancelled")
            self.assertIn("closed", client.log())

    def test_large_events_take_more_credit(self):
        client = self.model('''
            outputs = [{"name": "data", "type": "bytes"}]
            def stream(n: int):
                for _ in range(n):
                    yield {"data": b"x" * (1 << 20)}
        ''')
        count = [wire.Column("n", "int64", (), 1, [array("q", [40]).tobytes()])]
        answer = client.call(1, count, credit=40)
        client.wait(lambda: len(answer.columns) == 2)
        self.assertTrue(client.quiet(0.05))
        client.send({"op": "credit", "id": 1, "rows": 1 << 20})
        client.finish(answer)
        self.assertEqual(len(answer.columns), 40)

    def test_a_stream_answers_one_row(self):
        client = self.model(TOKENS)
        answer = client.call(1, prompts("a", "b"))
        client.finish(answer)
        self.assertEqual(answer.error()[0], "invalid_input")
        self.assertIn("one row", answer.error()[1])

    def test_text_generators_stay_what_they_are(self):
        for source in ("def generate(prompt):\n    yield prompt",
                       "from typing import Iterator\n"
                       "def stream(text: str) -> Iterator[str]:\n    yield text",
                       "def generate(prompt: str):\n    yield {'text': prompt}"):
            client = self.model(source)
            self.assertEqual(client.loaded["task"], "generate")

    def test_a_generator_declares_its_route(self):
        client = self.model(TOKENS + '\n    route = "/tokens"\n')
        self.assertEqual(client.loaded["route"], "/tokens")
        client = self.model('class Model:\n    route = "/say"\n'
                            '    def generate(self, prompt):\n        yield prompt')
        self.assertEqual((client.loaded["task"], client.loaded["route"]), ("generate", "/say"))
        self.assertIsNone(self.model(TOKENS).loaded["route"])

    def test_loads_that_fail(self):
        cases = [
            ("route = '/x'\ndef predict(x: int) -> int:\n    return x", "does not stream"),
            ("route = 'x'\ndef generate(prompt):\n    yield prompt", "attribute 'route'"),
            ("def stream(n: int):\n    yield {'a': 1}", "the events of 'stream' have no type"),
            ("outputs = [{'name': 'a', 'type': 'int64'}]\ndef stream():\n    yield {'a': 1}",
             "takes no input"),
            ("outputs = [{'name': 'a', 'type': 'int64'}]\ndef stream(x):\n    yield {'a': 1}",
             "the argument 'x' of 'stream' has no type"),
        ]
        for source, message in cases:
            client = self.start(self.directory(model__py=source))
            self.assertIn(message, client.failed or "")

    @unittest.skipUnless(os.path.exists(PYARROW), "needs an interpreter with pyarrow: " + PYARROW)
    def test_arrow_batches_are_events(self):
        client = self.start(self.directory(model__py='''
            from typing import Iterator
            import pyarrow as pa
            inputs = [{"name": "x", "type": "int64"}]
            outputs = [{"name": "y", "type": "int64"}, {"name": "v", "type": "fp32", "shape": [2]}]
            def predict(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
                v = pa.FixedSizeListArray.from_arrays(pa.array([0, 1] * len(batch), pa.float32()), 2)
                for times in (1, 2):
                    y = pa.array([x.as_py() * times for x in batch["x"]], pa.int64())
                    yield pa.record_batch([y, v], names=["y", "v"])
                yield {"y": [0], "v": [[0.5, 1.5]]}
        '''), python=PYARROW)
        self.assertIsNone(client.failed, client.log())
        answer = client.call(1, [wire.Column("x", "int64", (), 2, [array("q", [3, 4]).tobytes()])])
        client.finish(answer)
        self.assertEqual(answer.end["op"], "end", answer.end)
        self.assertEqual([columns["y"].values() for columns in answer.columns],
                         [[3, 4], [6, 8], [0]])
        self.assertEqual(answer.values("v")[-2:], [[0.0, 1.0], [0.5, 1.5]])

    @unittest.skipUnless(os.path.exists(MLSERVER), "needs an interpreter with numpy: " + MLSERVER)
    def test_each_event_has_its_own_values_of_an_array_that_changes(self):
        client = self.start(self.directory(model__py='''
            import numpy as np
            outputs = [{"name": "v", "type": "fp32", "shape": [2]}]
            def stream(n: int):
                v = np.zeros(2, dtype="float32")
                for number in range(n):
                    v[:] = number
                    yield {"v": v if number % 2 else v.reshape(1, 2)}
        '''), python=MLSERVER)
        self.assertIsNone(client.failed, client.log())
        answer = client.call(1, [wire.Column("n", "int64", (), 1, [array("q", [99]).tobytes()])])
        client.finish(answer)
        self.assertEqual(answer.values("v"), [[float(n), float(n)] for n in range(99)])


SCHEMA = '''
    INPUT_SCHEMA = {"prompt": {"datatype": "STRING", "required": True, "shape": [1]%s},
                    "n": {"datatype": "INT32", "required": False, "shape": [1]}}
    IS_STREAMING_OUTPUT = True
'''
APP = '''
    class InferlessPythonModel:
        def infer(self, inputs, stream_output_handler):
            send = stream_output_handler.send_streamed_output
            for number, word in enumerate(inputs["prompt"].split()[:inputs.get("n", 9)]):
                send({"OUT": word, "SCORE": %s})
            print("ended", flush=True)
'''


class Inferless(HostTest):
    def streaming(self, schema, score="number / 2"):
        """A host of a model that streams words with scores."""
        client = self.start(self.directory(app__py=APP % score, input_schema__py=schema))
        self.assertIsNone(client.failed, client.log())
        self.assertEqual(client.loaded["task"], "events")
        self.assertEqual([(one["name"], one["type"]) for one in client.loaded["outputs"]],
                         [("OUT", "utf8"), ("SCORE", "fp64")])
        return client

    def test_events_have_the_columns_of_the_example_or_of_the_declaration(self):
        declared = '''
    OUTPUT_SCHEMA = {"OUT": {"datatype": "STRING", "shape": [1]},
                     "SCORE": {"datatype": "FP64", "shape": [1]}}
'''
        for schema in (SCHEMA % ', "example": ["one two"]', SCHEMA % "" + declared):
            client = self.streaming(schema)
            n = wire.Column("n", "int32", (), 1, [array("i", [2]).tobytes()])
            # The model never finalises its stream.
            for id in range(3):
                answer = client.call(id, prompts("a b c") + [n])
                client.finish(answer)
                self.assertEqual((answer.values("OUT"), answer.values("SCORE")),
                                 (["a", "b"], [0.0, 0.5]))
                self.assertEqual(answer.end["op"], "end")

    def test_an_event_that_differs_ends_the_stream_with_the_difference(self):
        client = self.streaming(SCHEMA % ', "example": ["one"]', "0.5 if number == 0 else 'x'")
        answer = client.call(1, prompts("a b c"))
        client.finish(answer)
        self.assertEqual(answer.values("OUT"), ["a"])
        self.assertIn("the type of SCORE was float and is str", answer.error()[1])

    def test_a_stream_waits_for_credit_and_its_cancel_ends_the_model(self):
        client = self.streaming(SCHEMA % ', "example": ["one"]')
        answer = client.call(1, prompts("a b c d e"), credit=2)
        client.wait(lambda: answer.values("OUT") == ["a", "b"])
        self.assertTrue(client.quiet(0.05))
        client.send({"op": "cancel", "id": 1})
        client.finish(answer)
        self.assertEqual(answer.error()[0], "cancelled")
        after = client.call(2, prompts("z"))
        client.finish(after)
        self.assertEqual(after.values("OUT"), ["z"])


@unittest.skipUnless(os.path.exists(MLSERVER), "needs an interpreter with mlserver: " + MLSERVER)
class MlServer(HostTest):
    MODELS = '''
        from mlserver import MLModel
        from mlserver.codecs import NumpyCodec, StringCodec
        from mlserver.types import InferenceResponse
        import numpy as np

        class Words(MLModel):
            async def predict_stream(self, payloads):
                payload = [payload async for payload in payloads][0]
                text = StringCodec.decode_input(payload.inputs[0])[0]
                try:
                    for number, word in enumerate(text.split()):
                        yield InferenceResponse(model_name=self.name, outputs=[
                            StringCodec.encode_output("token", [word], use_bytes=True),
                            NumpyCodec.encode_output("scores", np.array([[number, 0.5]]))])
                finally:
                    print("closed", flush=True)

        class Both(Words):
            async def predict(self, payload):
                return InferenceResponse(model_name=self.name, outputs=[
                    StringCodec.encode_output("token", ["whole"]),
                    NumpyCodec.encode_output("scores", np.array([[1.0, 2.0]]))])
    '''
    TENSORS = {
        "inputs": [{"name": "prompt", "datatype": "BYTES", "shape": [1]}],
        "outputs": [{"name": "token", "datatype": "BYTES", "shape": [-1]},
                    {"name": "scores", "datatype": "FP64", "shape": [-1, 2]}],
    }

    def mlserver(self, name):
        """A host of one of the classes."""
        settings = {"name": name.lower(), "implementation": "models." + name, **self.TENSORS}
        directory = self.directory(models__py=self.MODELS,
                                   **{"model-settings__json": json.dumps(settings)})
        client = self.start(directory, python=MLSERVER)
        self.assertIsNone(client.failed, client.log())
        self.assertEqual(client.loaded["task"], "events")
        return client

    def test_each_response_is_an_event(self):
        client = self.mlserver("Words")
        answers = [client.call(id, prompts("a b")) for id in range(4)]
        stopped = client.call(9, prompts("a b c"), credit=1)
        client.finish(*answers)
        for answer in answers:
            self.assertEqual(answer.end["op"], "end", answer.end)
            self.assertEqual([columns["token"].values() for columns in answer.columns],
                             [["a"], ["b"]])
            self.assertEqual(answer.values("scores"), [[0.0, 0.5], [1.0, 0.5]])
        client.send({"op": "cancel", "id": 9})
        client.finish(stopped)
        self.assertEqual(client.log().count("closed"), 5)

    def test_whole_requests_go_to_predict_where_the_class_has_it(self):
        client = self.mlserver("Both")
        for id, (whole, expected) in enumerate([(True, ["whole"]), (False, ["a", "b"])]):
            answer = client.call(id, prompts("a b"), whole=whole)
            client.finish(answer)
            self.assertEqual(answer.values("token"), expected)
