"""Triton's own clients on what its users bring: repositories with ensembles and sequences, loads with
configurations and files, shared memory, bytes, and tensors of no rows.

    repository.py --http 127.0.0.1:8420 --graph model.onnx
    repository.py --grpc 127.0.0.1:8420 --graph model.onnx

The repository is registered and deployed before: `plus` (FP32 [-1, 2], adds 10 and 20), `adds` (`a` and `b`,
FP32 [-1, -1]), `sums` (a sequence), `texts` (BYTES [-1, 2]), and the ensembles `both` (two `plus`
joined by `adds`) and `around` (`plus`, then `both`). `--graph` is a file like that of `plus`.
Prints one line for each step; fails on the first that is not as it should be.
"""

import argparse
import json
import os

import numpy as np
import tritonclient.utils.shared_memory as shared_memory
from tritonclient.utils import InferenceServerException

ROWS = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)
# What `plus` adds to a row.
ADDED = np.array([10.0, 20.0], np.float32)


def said(step, text=""):
    print(json.dumps({"step": step, "text": str(text)}), flush=True)


def refused(call, *words):
    try:
        call()
    except InferenceServerException as error:
        for word in words:
            assert word in error.message(), (word, error.message())
        return error
    raise AssertionError(f"nothing was refused: {words}")


class Judge:
    def __init__(self, triton, client):
        self.triton, self.client = triton, client
        self.is_grpc = triton.__name__.endswith("grpc")

    def tensor(self, name, values, datatype="FP32"):
        given = self.triton.InferInput(name, list(values.shape), datatype)
        given.set_data_from_numpy(values)
        return given

    def ask(self, model, values, output="y", datatype="FP32", **more):
        answer = self.client.infer(model, [self.tensor("x", values, datatype)], **more)
        return answer.as_numpy(output)

    def object(self, answer):
        """A description as JSON has it, from either client."""
        if not self.is_grpc:
            return answer
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(answer, preserving_proto_field_name=True)

    def ensembles(self):
        for model, want in (("both", 2 * (ROWS + ADDED)), ("around", 2 * (ROWS + ADDED + ADDED))):
            metadata = self.object(self.client.get_model_metadata(model))
            assert metadata["platform"] == "ensemble", metadata
            assert metadata["versions"] == ["1"], metadata
            shape = [int(dim) for dim in metadata["inputs"][0]["shape"]]
            assert (metadata["inputs"][0]["name"], shape) == ("x", [-1, 2]), metadata
            config = self.object(self.client.get_model_config(model))
            config = config.get("config", config)
            steps = config["ensemble_scheduling"]["step"]
            assert {step["model_name"] for step in steps} <= {"plus", "adds", "both"}, config
            assert self.client.is_model_ready(model)
            for version in ("", "1"):
                got = self.ask(model, ROWS, model_version=version)
                np.testing.assert_allclose(got, want)
        wide = np.tile(ROWS, (100, 1))
        np.testing.assert_allclose(self.ask("both", wide), 2 * (wide + ADDED))
        assert self.ask("both", np.zeros((0, 2), np.float32)).shape[0] == 0
        refused(lambda: self.ask("both", ROWS.astype(bool), datatype="BOOL"), "FP32")
        states = self.index()
        assert states["both"] == "READY", states
        self.client.unload_model("both")
        assert not self.client.is_model_ready("both") and self.client.is_model_ready("plus")
        refused(lambda: self.ask("both", ROWS), "both")
        refused(lambda: self.ask("around", ROWS), "both")
        self.client.load_model("both")
        np.testing.assert_allclose(self.ask("around", ROWS), 2 * (ROWS + ADDED + ADDED))
        said("ensembles", steps[0]["model_name"])

    def index(self):
        index = self.object(self.client.get_model_repository_index())
        return {each["name"]: each.get("state") for each in index.get("models", [])} if self.is_grpc else {
            each["name"]: each["state"] for each in index
        }

    def given_ensemble(self):
        """One that comes with a load, and those that do not fit."""
        step = {"model_name": "plus", "model_version": -1, "input_map": {"x": "x"}, "output_map": {"y": "y"}}
        config = {
            "platform": "ensemble",
            "max_batch_size": 0,
            "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 2]}],
            "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1, 2]}],
            "ensemble_scheduling": {"step": [step]},
        }
        self.client.load_model("given", config=json.dumps(config))
        np.testing.assert_allclose(self.ask("given", ROWS), ROWS + ADDED)
        for change, words in (
            ({"model_name": "nobody"}, ("nobody", "not registered")),
            ({"input_map": {"z": "x"}}, ("'x'", "plus")),
            ({"input_map": {"x": "elsewhere"}}, ("elsewhere",)),
            ({"output_map": {"y": "z"}}, ("'y'",)),
            ({"model_name": "given"}, ("given",)),
            ({"model_version": 7}, ("7",)),
        ):
            wrong = dict(config, ensemble_scheduling={"step": [dict(step, **change)]})
            refused(lambda: self.client.load_model("given", config=json.dumps(wrong)), *words)
        typed = dict(config, input=[{"name": "x", "data_type": "TYPE_INT64", "dims": [-1, 2]}])
        refused(lambda: self.client.load_model("given", config=json.dumps(typed)), "TYPE_INT64", "TYPE_FP32")
        np.testing.assert_allclose(self.ask("given", ROWS), ROWS + ADDED)
        self.client.unload_model("given")
        said("given ensemble")

    def files(self, graph):
        """Files in place of the repository's, and back."""
        with open(graph, "rb") as file:
            graph = file.read()
        config = {"backend": "onnxruntime", "max_batch_size": 4}
        files = {"file:1/model.onnx": graph}
        self.client.load_model("brought", config=json.dumps(config), files=files)
        np.testing.assert_array_equal(self.ask("brought", ROWS), ROWS)
        told = self.object(self.client.get_model_config("brought"))
        assert told.get("config", told)["max_batch_size"] == 4, told
        # A model of the repository, with another graph for a while.
        np.testing.assert_allclose(self.ask("plus", ROWS), ROWS + ADDED)
        self.client.load_model("plus", config=json.dumps(config), files=files)
        np.testing.assert_array_equal(self.ask("plus", ROWS), ROWS)
        self.client.load_model("plus")
        np.testing.assert_allclose(self.ask("plus", ROWS), ROWS + ADDED)
        # A configuration alone is one for the repository's files.
        self.client.load_model("plus", config=json.dumps({"max_batch_size": 2}))
        np.testing.assert_allclose(self.ask("plus", ROWS), ROWS + ADDED)
        told = self.object(self.client.get_model_config("plus"))
        assert told.get("config", told)["max_batch_size"] == 2, told
        self.client.unload_model("plus")
        self.client.load_model("plus")
        told = self.object(self.client.get_model_config("plus"))
        assert told.get("config", told).get("max_batch_size", 0) == 0, told
        for wrong, words in (
            ({"file:../model.onnx": graph}, ("../model.onnx",)),
            ({"file:/etc/model.onnx": graph}, ("/etc/model.onnx",)),
            ({"file:1/model.onnx": b"no graph"}, ("broken",)),
        ):
            call = lambda: self.client.load_model("broken", config="{}", files=wrong)
            refused(call, *words)
        self.client.unload_model("brought")
        refused(lambda: self.client.load_model("brought"), "brought")
        refused(lambda: self.client.load_model("nobody"), "nobody")
        said("files", len(graph))

    def sequences(self):
        def step(number, **flags):
            one = np.array([[number]], np.float32)
            return float(self.ask("sums", one, "sum", **flags)[0, 0])

        sequences = (7, 9_999_999_999)
        for sequence in sequences:
            assert step(1, sequence_id=sequence, sequence_start=True) == 1
            assert step(2, sequence_id=sequence) == 3
        for sequence in sequences:
            assert step(3, sequence_id=sequence, sequence_end=True) == 6
            refused(lambda: step(1, sequence_id=sequence), "sequence_start")
        said("sequences", len(sequences))

    def texts(self):
        octets = np.array([[b"\xff\x00", b"plain"], ["grüße".encode(), b""]], np.object_)
        got = self.ask("texts", octets, datatype="BYTES")
        assert got.tolist() == octets.tolist(), got
        got = self.ask("texts", np.zeros((0, 2), np.object_), datatype="BYTES")
        assert got.shape == (0, 2), got
        said("texts")

    def shared(self):
        size = ROWS.nbytes
        name = f"/volley_judge_{os.getpid()}"
        given = shared_memory.create_shared_memory_region("given", name + "_in", size)
        taken = shared_memory.create_shared_memory_region("taken", name + "_out", size)
        try:
            shared_memory.set_shared_memory_region(given, [ROWS])
            self.client.unregister_system_shared_memory()
            self.client.register_system_shared_memory("given", name + "_in", size)
            self.client.register_system_shared_memory("taken", name + "_out", size)
            status = self.object(self.client.get_system_shared_memory_status())
            regions = status["regions"] if self.is_grpc else status
            found = regions.values() if self.is_grpc else regions
            assert sorted(each["name"] for each in found) == ["given", "taken"], status
            for model in ("plus", "both"):
                asked = self.triton.InferInput("x", list(ROWS.shape), "FP32")
                asked.set_shared_memory("given", size)
                wanted = self.triton.InferRequestedOutput("y")
                wanted.set_shared_memory("taken", size)
                answer = self.client.infer(model, [asked], outputs=[wanted])
                output = self.object(answer.get_output("y"))
                assert [int(dim) for dim in output["shape"]] == [3, 2], output
                got = shared_memory.get_contents_as_numpy(taken, np.float32, [3, 2])
                want = ROWS + ADDED if model == "plus" else 2 * (ROWS + ADDED)
                np.testing.assert_allclose(got, want)
            self.client.unregister_system_shared_memory("given")
            refused(lambda: self.client.infer("plus", [asked]), "given")
            self.client.unregister_system_shared_memory()
        finally:
            shared_memory.destroy_shared_memory_region(given)
            shared_memory.destroy_shared_memory_region(taken)
        said("shared memory")

    def statistics(self):
        stats = self.object(self.client.get_inference_statistics("both"))["model_stats"][0]
        assert (stats["name"], stats["version"]) == ("both", "1"), stats
        assert 0 < int(stats["inference_stats"]["success"]["count"]), stats
        server = self.object(self.client.get_server_metadata())
        wanted = {"model_repository", "model_repository(unload_dependents)", "sequence"}
        assert wanted <= set(server["extensions"]), server
        self.client.unload_model("around", unload_dependents=True)
        states = self.index()
        assert {states[name] for name in ("around", "both", "plus", "adds")} == {"UNAVAILABLE"}, states
        self.client.load_model("around")
        np.testing.assert_allclose(self.ask("around", ROWS), 2 * (ROWS + ADDED + ADDED))
        said("statistics")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--http")
    parser.add_argument("--grpc")
    parser.add_argument("--graph", required=True)
    arguments = parser.parse_args()
    if arguments.grpc:
        import tritonclient.grpc as triton
    else:
        import tritonclient.http as triton
    with triton.InferenceServerClient(arguments.grpc or arguments.http) as client:
        judge = Judge(triton, client)
        judge.ensembles()
        judge.given_ensemble()
        judge.files(arguments.graph)
        judge.sequences()
        judge.texts()
        judge.shared()
        judge.statistics()


if __name__ == "__main__":
    main()
