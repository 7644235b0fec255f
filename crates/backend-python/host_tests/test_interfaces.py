"""Models of other systems: Inferless and MLServer."""

import json
import os
import subprocess
import textwrap
import unittest
from array import array

from support import MLSERVER, HostTest, wire

SCHEMA = '''
    INPUT_SCHEMA = {
        "prompt": {"datatype": "STRING", "required": True, "shape": [1], "example": ["hi"]},
        "times": {"datatype": "INT8", "required": False, "shape": [1], "example": [768]},
    }
'''
STREAMING = SCHEMA + '''
    IS_STREAMING_OUTPUT = True
'''


class Inferless(HostTest):
    def streaming(self, body, schema=STREAMING):
        """A host of a streaming model with this body of `infer`."""
        lines = "\n".join("        " + line for line in body.strip().splitlines())
        text = ("import threading, time\nclass InferlessPythonModel:\n"
                "    def initialize(self):\n        self.ready = True\n"
                "    def infer(self, inputs, stream_output_handler):\n"
                "        send = stream_output_handler.send_streamed_output\n%s\n"
                "    def finalize(self, args):\n        print('finalized', flush=True)\n" % lines)
        client = self.start(self.directory(app__py=text, input_schema__py=schema))
        self.assertIsNone(client.failed, client.log())
        return client

    def test_a_model_answers_a_table(self):
        client = self.start(self.directory(app__py='''
            class InferlessPythonModel:
                def initialize(self): self.word = "!"
                def infer(self, inputs):
                    return {"text": inputs["prompt"] * inputs.get("times", 2) + self.word,
                            "keys": sorted(inputs), "score": 1.5}
                def finalize(self): print("finalized", flush=True)
        ''', input_schema__py=SCHEMA))
        self.assertEqual(client.loaded["interface"], "inferless")
        self.assertEqual([(one["name"], one["type"]) for one in client.loaded["inputs"]],
                         [("prompt", "utf8"), ("times", "int64")])
        self.assertEqual([(one["name"], one["type"]) for one in client.loaded["outputs"]],
                         [("text", "utf8"), ("keys", "json"), ("score", "fp64")])
        times = wire.Column("times", "int64", (), 2, [array("q", [3, 0]).tobytes()], b"\x01\x00")
        answer = client.call(1, [wire.text_column("prompt", "utf8", ["a", "b"]), times])
        client.finish(answer)
        self.assertEqual(answer.values("text"), ["aaa!", "bb!"])
        self.assertEqual(answer.values("keys"), [["prompt", "times"], ["prompt"]])
        client.send({"op": "unload"})
        self.assertEqual(client.exit_status(), 0)
        self.assertIn("finalized", client.log())

    def test_declared_outputs_tensors_and_objects(self):
        client = self.start(self.directory(app__py='''
            class InferlessPythonModel:
                def infer(self, inputs):
                    return {"y": [value * 2 for value in inputs["x"]], "o": inputs["o"],
                            "n": len(inputs["l"])}
        ''', input_schema__py='''
            INPUT_SCHEMA = {
                "x": {"datatype": "FP32", "required": True, "shape": [2]},
                "l": {"datatype": "INT32", "required": True, "shape": [-1]},
                "o": {"datatype": "JSON", "required": True, "shape": [1]},
            }
            OUTPUT_SCHEMA = {"y": {"datatype": "FP32", "shape": [2]}, "o": {"datatype": "OBJECT"},
                             "n": {"datatype": "INT64", "shape": [1]}}
        '''))
        self.assertIsNone(client.failed, client.log())
        columns = [wire.Column("x", "fp32", (2,), 1, [array("f", [1, 2]).tobytes()]),
                   wire.text_column("l", "utf8", ["[1, 2, 3]"]),
                   wire.text_column("o", "utf8", ['{"a": null}'])]
        answer = client.call(1, columns)
        client.finish(answer)
        self.assertEqual([answer.values(name)[0] for name in "yon"], [[2.0, 4.0], {"a": None}, 3])

    def test_batches_are_lists_of_dicts(self):
        client = self.start(self.directory(app__py='''
            class InferlessPythonModel:
                def infer(self, inputs):
                    return [{"n": len(inputs), "p": one["prompt"]} for one in inputs]
        ''', input_schema__py=SCHEMA + "\n    BATCH_SIZE = 2\n    BATCH_WINDOW = 50\n"))
        self.assertEqual(client.loaded["max_rows"], 2)
        answer = client.call(1, [wire.text_column("prompt", "utf8", ["a", "b", "c"])])
        client.finish(answer)
        self.assertEqual((answer.values("n"), answer.values("p")), ([2, 2, 1], ["a", "b", "c"]))

    def test_events_stream_and_a_forgotten_finalise_ends(self):
        for last in ("", "stream_output_handler.finalise_streamed_output(); send({'OUT': 'late'})"):
            client = self.streaming('''
for number in range(inputs.get("times", 3)):
    send({"OUT": inputs["prompt"] + str(number)})
%s''' % last)
            self.assertEqual(client.loaded["task"], "generate")
            self.assertEqual(client.loaded["parameters"], ["times"])
            for id in range(3):
                answer = client.prompt(id, "p", times=2)
                client.finish(answer)
                self.assertEqual(answer.texts(), ["p0", "p1"])
                self.assertEqual(answer.end["op"], "end")

    def test_differing_events_end_the_stream(self):
        cases = {
            "{'TEXT': 'b'}": "keys missing: OUT; keys added: TEXT",
            "{'OUT': 1}": "the type of OUT was str and is int",
            "{'OUT': 'b', 'n': 1}": "keys added: n",
        }
        for second, expected in cases.items():
            client = self.streaming('''
send({"OUT": "a"})
try:
    send(%s)
except Exception:
    pass''' % second)
            answer = client.prompt(1, "x")
            client.finish(answer)
            self.assertEqual(answer.texts(), ["a"])
            self.assertEqual(answer.error()[0], "internal")
            self.assertIn(expected, answer.error()[1])

    def test_events_with_more_keys_and_no_example_are_lines_of_json(self):
        schema = STREAMING.replace(', "example": ["hi"]', "")
        client = self.streaming('send({"a": "x", "n": 1})\nsend({"a": "y", "n": 2})', schema)
        answer = client.prompt(1, "x")
        client.finish(answer)
        lines = "".join(answer.texts()).splitlines()
        self.assertEqual([json.loads(line) for line in lines],
                         [{"a": "x", "n": 1}, {"a": "y", "n": 2}])

    def test_a_handler_waits_for_credit_and_ends_with_the_call(self):
        client = self.streaming('''
try:
    while True:
        try:
            send({"OUT": "x"})
        except Exception:
            pass
finally:
    print("left", flush=True)''')
        answer = client.prompt(1, "x", credit=5)
        client.wait(lambda: len(answer.texts()) == 5)
        self.assertTrue(client.quiet(0.05))
        client.send({"op": "cancel", "id": 1})
        client.finish(answer)
        self.assertEqual(len(answer.texts()), 5)
        self.assertIn("left", client.log())

    def test_a_handler_takes_events_of_many_threads(self):
        client = self.streaming('''
threads = [threading.Thread(target=lambda: [send({"OUT": "x"}) for _ in range(100)])
           for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]''')
        answer = client.prompt(1, "x")
        client.finish(answer)
        self.assertEqual(len(answer.texts()), 400)

    def test_wrong_parameters(self):
        client = self.streaming('send({"OUT": str(inputs["times"])})')
        cases = [({"times": "x"}, "parameter 'times' must be int64 and is str"),
                 ({"other": 1}, "the model has no parameter 'other'")]
        for id, (parameters, message) in enumerate(cases):
            answer = client.prompt(id, "x", **parameters)
            client.finish(answer)
            self.assertEqual(answer.error(), ("invalid_input", message))

    def test_objects_in_and_out(self):
        for app in ("class InferlessPythonModel:", "app = inferless.Cls(gpu='T4')\nclass Other:"):
            decorated = "    @app.%s\n" if "Other" in app else "%.0s"
            client = self.start(self.directory(app__py='''
from dataclasses import dataclass
from typing import List
import inferless
@inferless.request
@dataclass
class Request:
    prompt: str
    times: int = 2
@inferless.response
@dataclass
class Response:
    text: str
    keys: List[int]
%s
%s    def initialize(self):
        self.end = "!"
%s    def infer(self, request: Request) -> Response:
        return Response(text=request.prompt * request.times + self.end, keys=[request.times])
''' % (app, decorated % "load", decorated % "infer")))
            self.assertIsNone(client.failed, client.log())
            times = wire.Column("times", "int64", (), 2, [array("q", [3, 0]).tobytes()],
                                b"\x01\x00")
            answer = client.call(1, [wire.text_column("prompt", "utf8", ["a", "b"]), times])
            client.finish(answer)
            self.assertEqual(answer.values("text"), ["aaa!", "bb!"])
            self.assertEqual(answer.values("keys"), [[3], [2]])

    def test_loads_that_fail(self):
        app = '''
            class InferlessPythonModel:
                def infer(self, inputs): return {"n": inputs["n"] + 1}
        '''
        entry = 'INPUT_SCHEMA = {"n": {"datatype": "%s", "required": True, "shape": [1]%s}}'
        cases = [
            (entry % ("BF16", ""), "'n' of INPUT_SCHEMA has the datatype BF16"),
            (entry % ("INT32", ""), "the input 'n' has no example; add OUTPUT_SCHEMA"),
            (entry % ("STRING", ', "example": ["a"]'), "infer raised TypeError"),
            (entry % ("STRING", "") + "\nIS_STREAMING_OUTPUT = True", "stream_output_handler"),
        ]
        for schema, message in cases:
            client = self.start(self.directory(app__py=app, input_schema__py=schema))
            self.assertIn(message, client.failed or "")
        client = self.start(self.directory(app__py=app))
        self.assertIn("no input_schema.py", client.failed or "")


@unittest.skipUnless(os.path.exists(MLSERVER), "needs an interpreter with mlserver: " + MLSERVER)
class MlServer(HostTest):
    MODELS = '''
        from typing import List
        import numpy as np
        from mlserver import MLModel
        from mlserver.codecs import decode_args, StringCodec
        from mlserver.errors import InferenceError
        from mlserver.types import InferenceResponse

        class Scale(MLModel):
            """Scales."""
            async def load(self):
                self.factor = self.settings.parameters.extra["factor"]
                return True
            @decode_args
            async def predict(self, x: np.ndarray) -> np.ndarray:
                import lazy
                if x[0, 0] < 0:
                    raise InferenceError("no negative numbers")
                x += lazy.ONE
                return x * self.factor
            async def unload(self):
                print("unloaded", flush=True)
                return True

        class Words(MLModel):
            async def predict_stream(self, payloads):
                try:
                    async for payload in payloads:
                        for word in StringCodec.decode_input(payload.inputs[0])[0].split():
                            yield InferenceResponse(
                                model_name=self.name,
                                outputs=[StringCodec.encode_output("token", [word])])
                finally:
                    print("closed", flush=True)

        class Upper(MLModel):
            @decode_args
            async def predict(self, text: List[str]) -> List[str]:
                return [one.upper() for one in text]

        class Sleepy(MLModel):
            async def load(self): return False
    '''

    def mlserver(self, name, **settings):
        """A host of one of the classes."""
        settings = {"name": name.lower(), "implementation": "models." + name, **settings}
        directory = self.directory(models__py=self.MODELS, lazy__py="ONE = 1",
                                   **{"model-settings__json": json.dumps(settings)})
        return self.start(directory, python=MLSERVER)

    def test_predict_answers_a_table(self):
        columns = [{"name": "x", "datatype": "FP64", "shape": [-1, 2]}]
        client = self.mlserver("Scale", inputs=columns, outputs=[{**columns[0], "name": "y"}],
                               parameters={"extra": {"factor": 2}}, max_batch_size=8, max_batch_time=0.02)
        self.assertIsNone(client.failed, client.log())
        self.assertEqual(client.loaded["interface"], "mlserver")
        self.assertEqual(client.loaded["max_rows"], 8)
        self.assertEqual(client.loaded["batch_window_seconds"], 0.02)
        self.assertEqual(client.loaded["description"], "Scales.")
        self.assertEqual(client.loaded["outputs"],
                         [{"name": "y", "type": "fp64", "shape": [2], "nullable": False}])

        def x(*values):
            return [wire.Column("x", "fp64", (2,), len(values) // 2,
                                [array("d", values).tobytes()])]

        answers = [client.call(1, x(1, 2, 3, 4)), client.call(2, x(-1, 0))]
        client.finish(*answers)
        self.assertEqual(answers[0].values("y"), [[4.0, 6.0], [8.0, 10.0]])
        self.assertEqual(answers[1].error(), ("invalid_input", "no negative numbers"))
        client.send({"op": "unload"})
        self.assertEqual(client.exit_status(), 0)
        self.assertIn("unloaded", client.log())

    def runtime(self, name, train):
        """A host of a published runtime, with the model that `train` writes."""
        settings = {"name": "iris", "implementation": name,
                    "parameters": {"uri": "./model.bin", "version": "v1"}}
        directory = self.directory(**{"model-settings__json": json.dumps(settings)})
        subprocess.run([MLSERVER, "-c", textwrap.dedent(train)], check=True, cwd=directory)
        client = self.start(directory, python=MLSERVER)
        self.assertIsNone(client.failed, client.log())
        return client

    def test_the_runtime_of_scikit_learn_needs_no_declarations(self):
        client = self.runtime("mlserver_sklearn.SKLearnModel", """
            import joblib
            from sklearn.linear_model import LogisticRegression
            model = LogisticRegression().fit([[0, 0], [0, 1], [4, 4], [5, 4]], [7, 7, 9, 9])
            joblib.dump(model, "model.bin")
        """)
        self.assertEqual(
            [(one["name"], one["type"], one["shape"]) for one in client.loaded["inputs"]],
            [("predict", "fp64", [2])])
        self.assertEqual(
            [(one["name"], one["type"], one["shape"]) for one in client.loaded["outputs"]],
            [("predict", "int64", []), ("predict_proba", "fp64", [2])])
        rows = wire.Column("predict", "fp64", (2,), 2, [array("d", [0, 0, 5, 5]).tobytes()])
        answer = client.call(1, [rows])
        client.finish(answer)
        self.assertEqual(answer.values("predict"), [7, 9])
        for probabilities in answer.values("predict_proba"):
            self.assertAlmostEqual(sum(probabilities), 1)

    def test_the_runtime_of_lightgbm_needs_no_declarations(self):
        client = self.runtime("mlserver_lightgbm.LightGBMModel", """
            import lightgbm, numpy
            rows = numpy.arange(60.0).reshape(20, 3)
            data = lightgbm.Dataset(rows, label=rows[:, 0] * 2)
            options = {"min_data_in_leaf": 1, "verbose": -1}
            lightgbm.train(options, data, 5).save_model("model.bin")
        """)
        self.assertEqual([one["shape"] for one in client.loaded["inputs"]], [[3]])
        rows = wire.Column("predict", "fp64", (3,), 1, [array("d", [57, 58, 59]).tobytes()])
        answer = client.call(1, [rows])
        client.finish(answer)
        self.assertGreater(answer.values("predict")[0], 57)

    def test_texts_in_and_out(self):
        column = {"datatype": "BYTES", "shape": [-1], "parameters": {"content_type": "str"}}
        client = self.mlserver("Upper", inputs=[{**column, "name": "text"}],
                               outputs=[{**column, "name": "output-0"}])
        self.assertIsNone(client.failed, client.log())
        answer = client.call(1, [wire.text_column("text", "utf8", ["a", "é"])])
        client.finish(answer)
        self.assertEqual((answer.end["op"], answer.values("output-0")), ("end", ["A", "É"]))

    def test_predict_stream_generates(self):
        inputs = [{"name": "prompt", "datatype": "BYTES", "shape": [1]}]
        client = self.mlserver("Words", inputs=inputs)
        self.assertEqual(client.loaded["task"], "generate")
        answers = [client.prompt(id, "a b c") for id in range(4)]
        stopped = client.prompt(9, "a b c", credit=1)
        client.finish(*answers)
        for answer in answers:
            self.assertEqual(answer.texts(), ["a", "b", "c"])
        client.send({"op": "cancel", "id": 9})
        client.finish(stopped)
        self.assertEqual(client.log().count("closed"), 5)

    def test_loads_that_fail(self):
        columns = [{"name": "x", "datatype": "FP64", "shape": [-1, 2]}]
        cases = [
            (self.mlserver("Upper"), "declares no inputs"),
            (self.mlserver("Upper", inputs=columns), "declares no outputs"),
            (self.mlserver("Sleepy"), "load() returned False"),
            (self.mlserver("Missing"), "Missing"),
        ]
        for client, message in cases:
            self.assertIn(message, client.failed or "")
