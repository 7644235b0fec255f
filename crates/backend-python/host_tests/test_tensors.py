"""Models on tables: typed arguments, columns, batches."""

import os
import sys
import unittest
from array import array

from support import MLSERVER, PYARROW, HostTest, wire


def numbers(name, type, values, shape=()):
    """A column of numbers."""
    data = array(wire.FORMATS[type], values).tobytes()
    rows = len(values)
    for length in shape:
        rows //= length
    return wire.Column(name, type, shape, rows, [data])


def has_numpy():
    """The interpreter with numpy, or None."""
    return MLSERVER if os.path.exists(MLSERVER) else None


class Tensors(HostTest):
    def test_typed_arguments(self):
        client = self.model('''
            from typing import Optional
            class Predictor:
                """Fares."""
                def __init__(self, factor: float = 1.0):
                    self.factor = factor
                def predict(self, age: int, fare: float, city: Optional[str], *, add: float = 0.0
                            ) -> float:
                    return age + fare * self.factor + add + len(city or "")
        ''', factor=2.0)
        self.assertEqual(client.loaded["inputs"], [
            {"name": "age", "type": "int64", "shape": [], "nullable": False},
            {"name": "fare", "type": "fp64", "shape": [], "nullable": False},
            {"name": "city", "type": "utf8", "shape": [], "nullable": True}])
        self.assertEqual(client.loaded["outputs"], [
            {"name": "output", "type": "fp64", "shape": [], "nullable": False}])
        self.assertEqual(client.loaded["parameters"], ["add"])
        columns = [numbers("age", "int64", [1, 2]), numbers("fare", "fp64", [0.5, 1.5]),
                   wire.text_column("city", "utf8", ["ab", None])]
        answer = client.call(1, columns, add=10)
        client.finish(answer)
        self.assertEqual(answer.values("output"), [14.0, 15.0])

    def test_structures_and_json(self):
        for structure in ("class Out(TypedDict):", "@dataclass\nclass Out:",
                          "class Out(NamedTuple):"):
            client = self.model('''
from dataclasses import dataclass
from typing import Any, Dict, NamedTuple, TypedDict
%s
    score: float
    details: Dict[str, Any]
    ok: bool
    raw: bytes
def predict(details: dict, flag: bool) -> Out:
    return Out(score=1.5, details={"got": details}, ok=not flag, raw=b"\\x00a\\x00")
''' % structure)
            columns = [wire.text_column("details", "utf8", ['{"a": [1]}']),
                       wire.Column("flag", "bool", (), 1, [b"\x00"])]
            answer = client.call(1, columns)
            client.finish(answer)
            self.assertEqual(answer.values("score"), [1.5])
            self.assertEqual(answer.values("details"), [{"got": {"a": [1]}}])
            self.assertEqual(answer.values("ok"), [True])
            self.assertEqual(answer.values("raw"), [b"\x00a\x00"])

    def test_asynchronous_predict(self):
        client = self.model('''
            import asyncio
            async def predict(x: int) -> int:
                await asyncio.sleep(0)
                return x + 1
        ''')
        answer = client.call(1, [numbers("x", "int64", [1, 2, 3])])
        client.finish(answer)
        self.assertEqual(answer.values("output"), [2, 3, 4])

    def test_whole_columns_as_lists(self):
        client = self.model('''
            from typing import Dict, List
            inputs = [{"name": "x", "type": "fp32", "shape": [2]}]
            outputs = [{"name": "y", "type": "fp32", "shape": [2]}]
            def predict(batch: Dict[str, list]):
                return {"y": [[a, b + 1] for a, b in batch["x"]]}
        ''')
        answer = client.call(1, [numbers("x", "fp32", [1, 2, 3, 4], (2,))])
        client.finish(answer)
        self.assertEqual(answer.values("y"), [[1.0, 3.0], [3.0, 5.0]])

    def test_wrong_answers_are_named(self):
        client = self.model('''
            from typing import Dict
            inputs = [{"name": "kind", "type": "utf8"}]
            outputs = [{"name": "y", "type": "int32", "shape": []}]
            ANSWERS = {
                "length": {"y": [1, 2]}, "type": {"y": ["a"]}, "float": {"y": [1.5]},
                "null": {"y": [None]}, "missing": {"z": [1]}, "extra": {"y": [1], "z": [1]},
                "range": {"y": [1 << 40]}, "one": {"y": 3}, "right": {"y": [7]},
            }
            def predict(batch: Dict[str, list]):
                return ANSWERS[batch["kind"][0]]
        ''')
        cases = {
            "length": "output column 'y' of the model has 2 rows and the request has 1",
            "type": "output column 'y' of the model has a value of the type str and declares int32",
            "float": "a value of the type float and declares int32",
            "null": "a value of the type null and declares int32",
            "missing": "no output 'y'; it has z",
            "extra": "has the output 'z', which it does not declare",
            "range": "a value outside of int32",
            "one": "is int and must be a list",
        }
        for id, (kind, message) in enumerate(cases.items()):
            answer = client.call(id, [wire.text_column("kind", "utf8", [kind])])
            client.finish(answer)
            self.assertEqual(answer.error()[0], "internal")
            self.assertIn(message, answer.error()[1])
        answer = client.call(99, [wire.text_column("kind", "utf8", ["right"])])
        client.finish(answer)
        self.assertEqual(answer.values("y"), [7])

    def test_an_answer_is_split_by_credit(self):
        client = self.model("def predict(x: int, t: str) -> str: return t * x")
        columns = [numbers("x", "int64", range(10)), wire.text_column("t", "utf8", ["é"] * 10)]
        answer = client.call(1, columns, credit=4)
        client.wait(lambda: len(answer.values("output")) == 4)
        self.assertTrue(client.quiet(0.05))
        client.send({"op": "credit", "id": 1, "rows": 100})
        client.finish(answer)
        self.assertEqual(answer.values("output"), ["é" * number for number in range(10)])

    def test_a_text_that_is_not_json(self):
        client = self.model("def predict(x: dict) -> int: return 1")
        answer = client.call(1, [wire.text_column("x", "utf8", ["{"])])
        client.finish(answer)
        self.assertEqual(answer.error(),
                         ("invalid_input", "input column 'x' has a text that is not JSON"))

    def test_mixed_arguments_are_refused(self):
        message = self.load_failure('''
            from typing import List
            def predict(x, k: float) -> float: return k
        ''')
        self.assertIn("the argument 'x' of 'predict'", message)
        self.assertIn("write: def predict(x: float)", message)


@unittest.skipUnless(has_numpy(), "needs an interpreter with numpy: " + MLSERVER)
class Arrays(HostTest):
    def test_arrays_are_writable_and_typed(self):
        client = self.model('''
            from typing import Annotated
            import numpy as np
            def predict(x: Annotated[np.ndarray, "fp32", (2, 2)]) -> Annotated[
                    np.ndarray, "fp32", (2, 2)]:
                assert x.ctypes.data % 64 == 0
                x += 1
                return x.transpose(0, 2, 1)
        ''', python=has_numpy())
        self.assertEqual(client.loaded["inputs"][0]["shape"], [2, 2])
        answer = client.call(1, [numbers("x", "fp32", range(8), (2, 2))])
        client.finish(answer)
        self.assertEqual(answer.values("output"), [[[1, 3], [2, 4]], [[5, 7], [6, 8]]])

    def test_wrong_arrays_are_named(self):
        client = self.model('''
            from typing import Dict
            import numpy as np
            inputs = [{"name": "kind", "type": "utf8"}]
            outputs = [{"name": "y", "type": "fp32", "shape": [2]}]
            ANSWERS = {
                "shape": np.zeros((1, 3), "float32"), "type": np.zeros((1, 2)),
                "rows": np.zeros((3, 2), "float32"), "right": np.ones((1, 2), "float16"),
            }
            def predict(batch: Dict[str, np.ndarray]):
                return {"y": ANSWERS[batch["kind"][0]]}
        ''', python=has_numpy())
        cases = {
            "shape": "has rows of the shape [3] and declares [2]",
            "type": "has the type float64 and declares fp32",
            "rows": "has 3 rows and the request has 1",
        }
        for id, (kind, message) in enumerate(cases.items()):
            answer = client.call(id, [wire.text_column("kind", "utf8", [kind])])
            client.finish(answer)
            self.assertIn(message, answer.error()[1])
        answer = client.call(99, [wire.text_column("kind", "utf8", ["right"])])
        client.finish(answer)
        self.assertEqual(answer.values("y"), [[1.0, 1.0]])

    def test_large_tensors_come_back_whole(self):
        client = self.model('''
            from typing import Annotated
            import numpy as np
            kept = np.zeros((4, 1 << 20), "fp32" and "float32")
            def predict(x: Annotated[np.ndarray, "fp32", (1 << 20,)]) -> Annotated[
                    np.ndarray, "fp32", (1 << 20,)]:
                kept[:] = x  # memory that the next call writes to
                return kept
        ''', python=has_numpy())
        for id in range(3):
            data = array("f", [id]).tobytes() * (4 << 20)
            column = wire.Column("x", "fp32", (1 << 20,), 4, [data])
            answer = client.call(id, [column])
            client.finish(answer)
            self.assertEqual(bytes(answer.columns[0]["output"].buffers[0]), data)

    def test_all_types_pass_through_numpy(self):
        types = [name for name in wire.FORMATS]
        fields = [{"name": name, "type": name, "shape": []} for name in types]
        client = self.model('''
            from typing import Dict
            import numpy as np
            inputs = outputs = %r
            def predict(batch: Dict[str, np.ndarray]):
                return batch
        ''' % fields, python=has_numpy())
        columns = [wire.Column(name, name, (), 2, [bytes([1, 0] + [0] * (2 * wire.WIDTHS[name] - 2))
                                                   if name == "bool" else
                                                   bytes(2 * wire.WIDTHS[name])]) for name in types]
        answer = client.call(1, columns)
        client.finish(answer)
        self.assertEqual(answer.end["op"], "end")
        self.assertEqual(answer.values("bool"), [True, False])
        self.assertEqual(answer.values("fp16"), [0.0, 0.0])


@unittest.skipUnless(os.path.exists(PYARROW), "needs an interpreter with pyarrow: " + PYARROW)
class Arrow(HostTest):
    def test_batches_are_converted_both_ways(self):
        client = self.model('''
            import pyarrow as pa
            import pyarrow.compute as pc
            inputs = [{"name": "x", "type": "fp32", "shape": [2]}, {"name": "n", "type": "int64"},
                      {"name": "t", "type": "utf8", "nullable": True}]
            outputs = inputs + [{"name": "big", "type": "bool"}]
            def predict(batch: pa.RecordBatch):
                names = batch.schema.names + ["big"]
                columns = batch.columns + [pc.greater(batch.column(1), 1)]
                return pa.RecordBatch.from_arrays(columns, names)
        ''', python=PYARROW)
        columns = [numbers("x", "fp32", [1, 2, 3, 4], (2,)), numbers("n", "int64", [1, 2]),
                   wire.text_column("t", "utf8", ["a", None])]
        answer = client.call(1, columns)
        client.finish(answer)
        self.assertEqual(answer.end["op"], "end", client.log())
        self.assertEqual(answer.values("x"), [[1.0, 2.0], [3.0, 4.0]])
        self.assertEqual(answer.values("n"), [1, 2])
        self.assertEqual(answer.values("t"), ["a", None])
        self.assertEqual(answer.values("big"), [False, True])


if __name__ == "__main__":
    sys.exit(unittest.main())
