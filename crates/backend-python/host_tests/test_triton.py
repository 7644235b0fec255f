"""Models of Triton's Python backend: what they import and get, and their signatures."""

import json
import os

from triton_models import ADD_SUB, HEAD, TritonTest, add_sub, config, floats, port, rows_of, texts

ARGUMENTS = '''
class TritonPythonModel:
    def initialize(self, args):
        assert all(isinstance(value, str) for value in args.values())
        args["dir"] = pb_utils.get_model_dir()
        args["parameters"] = json.loads(args.pop("model_config"))["parameters"]
        self.args = args
    def execute(self, requests):
        text = json.dumps(self.args).encode()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([text], object))])]
'''


class Triton(TritonTest):
    def test_a_model_without_a_batch_runs_once_for_each_row(self):
        client = self.loaded(ADD_SUB, add_sub())
        self.assertEqual(client.loaded["interface"], "triton")
        self.assertEqual(client.loaded["description"], "Adds and subtracts.")
        self.assertEqual(client.loaded["inputs"][0], {
            "name": "A", "type": "fp32", "shape": [4], "nullable": False})
        self.assertEqual(client.loaded["config"]["model_transaction_policy"], {"decoupled": False})
        answer = self.answer(client, floats("A", range(8), (4,)), floats("B", [1] * 8, (4,)))
        self.assertEqual(answer.values("SUM"), [[1, 2, 3, 4], [5, 6, 7, 8]])
        self.assertEqual(answer.values("DIFFERENCE"), [[-1, 0, 1, 2], [3, 4, 5, 6]])
        client.send({"op": "unload"})
        self.assertEqual(client.exit_status(), 0)
        self.assertIn("finalized", client.log())

    def test_rows_are_the_first_dimension_and_a_long_call_is_several_requests(self):
        client = self.loaded('''
class TritonPythonModel:
    def execute(self, requests):
        assert len(requests) == 1
        x = requests[0].inputs()[0]
        assert x.shape() == list(x.as_numpy().shape) and x.is_cpu() and x.triton_dtype() == 11
        y = np.full(x.as_numpy().shape, x.as_numpy().shape[0], dtype=np.float64)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)])]
''', config(max_batch_size=2))
        self.assertEqual(self.values(client, "Y", floats("X", range(5))),
                         [[2], [2], [2], [2], [1]])

    def test_waiting_requests_are_one_call_of_execute(self):
        client = self.loaded('''
import os, time
class TritonPythonModel:
    def execute(self, requests):
        if requests[0].inputs()[0].as_numpy()[0, 0] < 0:
            open("begun", "w").close()
            while not os.path.exists("go"):
                time.sleep(0.001)
        n = len(requests)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.full(
            request.inputs()[0].as_numpy().shape, n, np.float32))]) for request in requests]
''', config(max_batch_size=4, dynamic_batching={}))
        self.assertEqual(client.loaded["concurrency"], 8)
        first = client.call(1, [floats("X", [-1])])
        self.until(lambda: os.path.exists(os.path.join(client.directory, "begun")))
        others = [client.call(id, [floats("X", [id] * rows)])
                  for id, rows in ((2, 1), (3, 2), (4, 2), (5, 1))]
        open(os.path.join(client.directory, "go"), "w").close()
        client.finish(first, *others)
        self.assertEqual([other.values("Y")[0] for other in others], [[2], [2], [2], [2]])

    def test_a_call_waits_for_others_as_the_configuration_says(self):
        client = self.loaded('''
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array(
            [[len(requests)]], np.float32))]) for request in requests]
''', config(max_batch_size=8, dynamic_batching={
            "preferred_batch_size": [2], "max_queue_delay_microseconds": 1000000}))
        answers = [client.call(id, [floats("X", [id])]) for id in (1, 2)]
        client.finish(*answers)
        self.assertEqual([answer.values("Y") for answer in answers], [[[2]], [[2]]])

    def test_texts_are_object_arrays_of_bytes(self):
        client = self.loaded('''
class TritonPythonModel:
    def execute(self, requests):
        x = requests[0].inputs()[0].as_numpy()
        assert x.dtype == np.object_ and all(isinstance(v, bytes) for v in x.ravel()), x
        coded = pb_utils.serialize_byte_tensor(x)
        assert (pb_utils.deserialize_bytes_tensor(coded) == x.ravel()).all()
        kinds = {b"str": lambda v: np.array([s.decode() for s in v.ravel()], dtype=object),
                 b"S": lambda v: v.astype("S8")}
        y = kinds.get(x.ravel()[0], lambda v: v)(x)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)])]
''', config([port("X", "TYPE_STRING", (2,))], [port("Y", "TYPE_STRING", (2,))], max_batch_size=8))
        column = texts("X", [b"\x00a\xff\x00", b"", b"c", "é".encode()], (2,))
        self.assertEqual(self.values(client, "Y", column),
                         [[b"\x00a\xff\x00", b""], [b"c", "é".encode()]])
        for first in (b"str", b"S"):
            self.assertEqual(self.values(client, "Y", texts("X", [first, b"b"], (2,))),
                             [[first, b"b"]])

    def test_lengths_that_differ(self):
        client = self.loaded('''
class TritonPythonModel:
    def execute(self, requests):
        x = [request.inputs()[0].as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.concatenate([v, v], axis=1))])
                for v in x]
''', config([port("X", dims=(-1,))], [port("Y", dims=(-1,))], max_batch_size=8))
        self.assertEqual(client.loaded["inputs"][0]["shape"], [-1])
        column = rows_of("X", [[1, 2], [3, 4], [5], []])
        self.assertEqual(self.values(client, "Y", column), [[1, 2, 1, 2], [3, 4, 3, 4], [5, 5], []])

    def test_texts_of_any_length_without_a_batch(self):
        client = self.loaded('''
class TritonPythonModel:
    def execute(self, requests):
        x = requests[0].inputs()[0].as_numpy()
        words = [word for text in x for word in text.split()]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array(words, dtype=object))])]
''', config([port("X", "TYPE_STRING", (-1,))], [port("Y", "TYPE_STRING", (-1,))]))
        column = rows_of("X", [[b"a b", b"c"], [b"d"]], "bytes")
        self.assertEqual(self.values(client, "Y", column), [[b"a", b"b", b"c"], [b"d"]])

    def test_an_optional_input_and_a_reshape(self):
        client = self.loaded('''
class TritonPythonModel:
    def execute(self, requests):
        found = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X").as_numpy()
            assert x.ndim == 1, x.shape
            z = pb_utils.get_input_tensor_by_name(request, "Z")
            y = x if z is None else x + z.as_numpy()[:, 0]
            found.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", y)]))
        return found
''', config([port("X", reshape={}), port("Z", optional=True)],
            [port("Y", reshape={"shape": []})], max_batch_size=4))
        self.assertEqual(self.values(client, "Y", floats("X", [1, 2])), [[1], [2]])
        optional = floats("Z", [10, 20])
        optional.valid = b"\x01\x00"
        self.assertEqual(self.values(client, "Y", floats("X", [1, 2]), optional), [[11], [2]])

    def test_the_arguments_of_initialize(self):
        client = self.loaded("", config(outputs=[port("Y", "TYPE_STRING")], parameters={
            "a": {"string_value": "file"}, "b": {"string_value": "file"}},
            instance_group=[{"count": 1, "kind": "KIND_CPU"},
                            {"count": 2, "kind": "KIND_GPU", "gpus": [1, 3]}]),
            triton={"version": "7", "instance": 3}, b="registered", n=2,
            files={"7/model__py": HEAD + ARGUMENTS})
        found = json.loads(self.values(client, "Y", floats("X", [1]))[0][0])
        root = os.path.realpath(client.directory)
        self.assertEqual(found, {
            "model_instance_kind": "GPU", "model_instance_name": "m_3",
            "model_instance_device_id": "3", "model_repository": root, "model_version": "7",
            "model_name": "m", "dir": os.path.join(root, "7"),
            "parameters": {"a": {"string_value": "file"}, "b": {"string_value": "registered"},
                           "n": {"string_value": "2"}}})

    def test_a_request_tells_about_itself(self):
        client = self.loaded('''
class TritonPythonModel:
    def execute(self, requests):
        request = requests[0]
        told = [request.request_id(), request.correlation_id(), request.flags(), request.timeout(),
                json.loads(request.parameters()), request.requested_output_names(),
                request.is_cancelled(), json.loads(request.trace().get_context())]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array(
            [json.dumps(told)], dtype=object))])]
''', config(outputs=[port("Y", "TYPE_STRING")]))
        found = self.values(client, "Y", floats("X", [1]), sequence_id=9, sequence_start=True,
                            timeout=5, priority=1, k=0.5, deep={"a": [1]})
        self.assertEqual(json.loads(found[0][0]), [
            "request-1", 9, 1, 5, {"k": 0.5, "deep": '{"a": [1]}'}, ["Y"], False,
            {"traceparent": "00-ab-cd-01"}])

    def test_files_beside_the_model_and_relative_imports(self):
        client = self.loaded('''
import os, helper
from . import other
class TritonPythonModel:
    def execute(self, requests):
        with open(os.path.join(os.path.dirname(__file__), "n.txt")) as file:
            n = float(file.read()) + helper.N + other.N
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([n], np.float32))])]
''', files={"1/n__txt": "1", "1/helper__py": "N = 10", "1/other__py": "N = 100"})
        self.assertEqual(self.values(client, "Y", floats("X", [0])), [[111]])

    def test_auto_complete_config(self):
        client = self.loaded('''
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        config = auto_complete_model_config
        for name in ("A", "B"):
            config.add_input({"name": name, "data_type": "TYPE_FP32", "dims": [4]})
        for name in ("SUM", "DIFFERENCE"):
            config.add_output({"name": name, "data_type": "TYPE_FP32", "dims": [4]})
        config.set_max_batch_size(4)
        config.set_dynamic_batching()
        return config
''' + ADD_SUB.split('"""Adds and subtracts."""')[1], {"max_batch_size": 2})
        self.assertEqual(client.loaded["config"]["max_batch_size"], 4)
        answer = self.answer(client, floats("A", range(8), (4,)), floats("B", [1] * 8, (4,)))
        self.assertEqual(answer.values("SUM"), [[1, 2, 3, 4], [5, 6, 7, 8]])
        client = self.triton('''
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "X", "data_type": "TYPE_INT8", "dims": [1]})
''')
        self.assertIn("has the data_type TYPE_FP32 in config.pbtxt and TYPE_INT8", client.failed)

    def test_fields_without_effect_are_logged(self):
        client = self.loaded(ADD_SUB, add_sub(
            optimization={"priority": "PRIORITY_MAX"}, platform="x", metric_tags={},
            dynamic_batching={"preserve_ordering": True, "preferred_batch_size": [2]}))
        self.assertIn("fields of config.pbtxt without effect: dynamic_batching.preserve_ordering, "
                      "optimization, platform", [one["message"] for one in client.logs])

    def test_loads_that_fail_name_the_reason(self):
        body = "class TritonPythonModel:\n    def execute(self, requests): pass\n"
        cases = [
            ("x = 1", config(), "1/model.py has no class TritonPythonModel"),
            ("class TritonPythonModel: pass", config(), "has no method execute"),
            (body, {"input": [port("X")]}, "the model declares no outputs"),
            (body, config([port("X", "TYPE_BF16")]), "has the data_type TYPE_BF16"),
            (body, config(sequence_batching={"direct": {}}), "has 'sequence_batching'"),
            (body, config(default_model_filename="main.py"), "has no file 'main.py'"),
            (body, config([port("X", reshape={"shape": [2]})]), "the 'reshape' of 'X' is [2]"),
            (body + "    def initialize(self, args): raise pb_utils.TritonModelException('no w')",
             config(), "TritonModelException: no w (1/model.py, line 6)"),
        ]
        for text, settings, expected in cases:
            client = self.triton(text, settings)
            self.assertIn(expected, client.failed or "")

