"""Triton's own clients call models of Triton's Python backend.

    python_backend.py --http 127.0.0.1:8420
    python_backend.py --grpc 127.0.0.1:8420

The repository is registered and deployed before: `add_sub` (FP32 [4], without a batch), `upper`
(BYTES [-1, 1]) and `repeat` (INT32 [-1], decoupled). Prints one line for each step; fails on the
first that is not as it should be.
"""

import argparse
import json
import queue

import numpy as np
from tritonclient.utils import InferenceServerException


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

    def tensor(self, name, values, datatype):
        given = self.triton.InferInput(name, list(values.shape), datatype)
        given.set_data_from_numpy(values)
        return given

    def object(self, answer):
        """A description as JSON has it, from either client."""
        if not self.is_grpc:
            return answer
        from google.protobuf.json_format import MessageToDict

        return MessageToDict(answer, preserving_proto_field_name=True)

    def descriptions(self):
        metadata = self.object(self.client.get_model_metadata("add_sub"))
        shapes = {one["name"]: [int(dim) for dim in one["shape"]] for one in metadata["inputs"]}
        assert shapes == {"INPUT0": [4], "INPUT1": [4]}, metadata
        config = self.object(self.client.get_model_config("upper"))
        config = config.get("config", config)
        assert (config["backend"], config["max_batch_size"]) == ("python", 8), config
        assert config["input"][0]["data_type"] == "TYPE_STRING", config
        said("descriptions", shapes)

    def numbers(self):
        one, two = np.arange(4, dtype=np.float32), np.full(4, 2, np.float32)

        def inputs(first):
            return [self.tensor("INPUT0", first, "FP32"), self.tensor("INPUT1", two, "FP32")]

        answer = self.client.infer("add_sub", inputs(one))
        np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), one + two)
        np.testing.assert_array_equal(answer.as_numpy("OUTPUT1"), one - two)
        wanted = [self.triton.InferRequestedOutput("OUTPUT1")]
        answer = self.client.infer("add_sub", inputs(one), outputs=wanted)
        assert answer.as_numpy("OUTPUT0") is None
        said("numbers", answer.as_numpy("OUTPUT1"))
        refused(lambda: self.client.infer("add_sub", inputs(-one - 1)), "INPUT0 is negative")
        said("error")

    def texts(self):
        words = np.array([[b"one"], ["zwölf".encode()], [b"\xff\x00"]], dtype=np.object_)
        answer = self.client.infer("upper", [self.tensor("TEXT", words, "BYTES")])
        got = answer.as_numpy("UPPER")
        assert got.tolist() == [[b"ONE"], ["ZWöLF".encode()], [b"\xff\x00"]], got
        said("texts", got)

    def stream(self):
        """Responses of a decoupled model; over HTTP there is exactly one."""
        once = self.client.infer("repeat", [self.tensor("IN", np.array([7], np.int32), "INT32")])
        np.testing.assert_array_equal(once.as_numpy("OUT"), [7])
        if not self.is_grpc:
            return
        answers = queue.Queue()
        self.client.start_stream(lambda result, error: answers.put((result, error)))
        given = np.array([4, 2, 0], np.int32)
        self.client.async_stream_infer("repeat", [self.tensor("IN", given, "INT32")],
                                       enable_empty_final_response=True)
        found = []
        while True:
            result, error = answers.get(timeout=60)
            assert error is None, error
            last = result.get_response().parameters.get("triton_final_response")
            if last is not None and last.bool_param:
                break
            found.append(int(result.as_numpy("OUT")[0]))
        assert found == [4, 2, 0], found
        self.client.stop_stream()
        said("stream", found)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--http")
    parser.add_argument("--grpc")
    arguments = parser.parse_args()
    if arguments.grpc:
        import tritonclient.grpc as triton
    else:
        import tritonclient.http as triton
    with triton.InferenceServerClient(arguments.grpc or arguments.http) as client:
        judge = Judge(triton, client)
        judge.descriptions()
        judge.numbers()
        judge.texts()
        judge.stream()


if __name__ == "__main__":
    main()
