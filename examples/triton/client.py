"""Triton's own HTTP client, pointed at a Volley cluster.

    pip install 'tritonclient[http]' ml_dtypes
    python client.py --url 127.0.0.1:8420 --model classifier

`classifier` takes `pixels` (FP32, 8 × 8). With --bfloat16 and --text, models that give back the
pairs `x` that they are given (as `y`) are called too, and with --repository one that is not
loaded yet is loaded and unloaded. Prints one line for each step; fails on the first that is not
as it should be.
"""

import argparse
import json

import numpy as np
import tritonclient.http as triton
from ml_dtypes import bfloat16
from tritonclient.utils import InferenceServerException


def said(step, text):
    print(json.dumps({"step": step, "text": text}), flush=True)


def tensor(name, values, datatype, binary=True):
    given = triton.InferInput(name, list(values.shape), datatype)
    given.set_data_from_numpy(values, binary_data=binary)
    return given


def refused(call):
    try:
        call()
    except InferenceServerException as error:
        return error
    raise AssertionError("nothing was refused")


def health(client, model):
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(model)
    server = client.get_server_metadata()
    assert {"binary_tensor_data", "statistics"} <= set(server["extensions"]), server
    metadata = client.get_model_metadata(model)
    config = client.get_model_config(model)
    assert [port["name"] for port in config["input"]] == [port["name"] for port in metadata["inputs"]]
    said("health", server["name"])


def tensors(client, model):
    pixels = np.random.default_rng(7).random((3, 8, 8), np.float32)
    names = [output["name"] for output in client.get_model_metadata(model)["outputs"]]
    answers = []
    for binary_in in (True, False):
        for binary_out in (True, False):
            outputs = [triton.InferRequestedOutput(name, binary_data=binary_out) for name in names]
            given = [tensor("pixels", pixels, "FP32", binary_in)]
            answers.append(client.infer(model, given, outputs=outputs, request_id="7"))
    # Without a word on outputs, all of them come, in binary form.
    answers.append(client.infer(model, [tensor("pixels", pixels, "FP32")]))
    for algorithm in ("gzip", "deflate"):
        answers.append(
            client.infer(
                model,
                [tensor("pixels", pixels, "FP32")],
                request_compression_algorithm=algorithm,
                response_compression_algorithm=algorithm,
            )
        )
    assert answers[0].get_response()["id"] == "7"
    for name in names:
        first = answers[0].as_numpy(name)
        assert first.shape[0] == 3, first.shape
        for answer in answers[1:]:
            np.testing.assert_allclose(answer.as_numpy(name), first, 1e-6)
    said("tensors", f"{len(answers)} ways")


def classes(client, model):
    pixels = np.random.default_rng(7).random((2, 8, 8), np.float32)
    outputs = client.get_model_metadata(model)["outputs"]
    name = next(output["name"] for output in outputs if output["datatype"] == "FP32")
    best = {}
    for count in (0, 3):
        outputs = [triton.InferRequestedOutput(name, class_count=count)]
        answer = client.infer(model, [tensor("pixels", pixels, "FP32")], outputs=outputs)
        best[count] = answer.as_numpy(name)
    assert best[3].shape == (2, 3), best
    places = [[int(text.split(b":")[1]) for text in row] for row in best[3]]
    np.testing.assert_array_equal(places, np.argsort(-best[0], 1, kind="stable")[:, :3])
    said("classes", best[3][0][0].decode())


def later(client, model):
    pixels = np.zeros((1, 8, 8), np.float32)
    asked = [client.async_infer(model, [tensor("pixels", pixels, "FP32")]) for _ in range(4)]
    assert len({answer.get_result().get_response()["model_version"] for answer in asked}) == 1
    said("async", str(len(asked)))


def pairs(client, model, values, datatype):
    answer = client.infer(model, [tensor("x", values, datatype)]).as_numpy("y")
    if datatype == "BYTES":
        assert [text.decode() for text in answer.flat] == list(values.flat), answer
    else:
        np.testing.assert_array_equal(answer, values)
    said(datatype, str(answer.shape))


def raw(client, model):
    """A body that is nothing but the bytes of the one tensor."""
    headers = {"Inference-Header-Content-Length": "0"}
    body = np.zeros((1, 8, 8), np.float32).tobytes()
    response = client._post(f"v2/models/{model}/infer", body, headers, None)
    assert response.status_code == 200, response.read()
    length = int(response.get("Inference-Header-Content-Length"))
    outputs = json.loads(response.read(length))["outputs"]
    assert all(output["parameters"]["binary_data_size"] for output in outputs)
    said("raw", str(len(outputs)))


def errors(client, model):
    short = triton.InferInput("pixels", [1, 8, 8], "FP32")
    short.set_data_from_numpy(np.zeros((1, 8, 8), np.float32))
    short._shape = [2, 8, 8]
    error = refused(lambda: client.infer(model, [short]))
    assert "pixels" in error.message() and error.status() == "400", error
    unknown = refused(lambda: client.infer("no-such-model", [short]))
    assert unknown.status() == "404", unknown
    said("errors", error.message())


def left(url, generator):
    """Goes away while the answer is made."""
    asked = triton.InferInput("text_input", [1], "BYTES")
    asked.set_data_from_numpy(np.array([b"Tell me a story."], object))
    parameters = {"max_tokens": 900, "ignore_eos": True}
    with triton.InferenceServerClient(url, network_timeout=0.1) as client:
        try:
            client.infer(generator, [asked], parameters=parameters)
            raise AssertionError("the answer was there already")
        except (TimeoutError, InferenceServerException) as error:
            said("left", repr(error))


def statistics(client, model):
    stats = client.get_inference_statistics(model)["model_stats"][0]
    assert 10 < stats["inference_stats"]["success"]["count"], stats
    assert 0 < stats["inference_stats"]["fail"]["count"], stats
    assert model in [each["name"] for each in client.get_inference_statistics()["model_stats"]]
    said("statistics", str(stats["inference_count"]))


def repository(client, model):
    states = {each["name"]: each["state"] for each in client.get_model_repository_index()}
    assert states[model] == "UNAVAILABLE", states
    client.load_model(model)
    assert client.is_model_ready(model)
    client.unload_model(model)
    assert not client.is_model_ready(model)
    said("repository", ", ".join(states))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="127.0.0.1:8420")
    parser.add_argument("--model", default="classifier")
    parser.add_argument("--generator", default="storyteller")
    parser.add_argument("--bfloat16")
    parser.add_argument("--text")
    parser.add_argument("--repository")
    arguments = parser.parse_args()
    with triton.InferenceServerClient(arguments.url, concurrency=4) as client:
        health(client, arguments.model)
        tensors(client, arguments.model)
        classes(client, arguments.model)
        later(client, arguments.model)
        raw(client, arguments.model)
        errors(client, arguments.model)
        statistics(client, arguments.model)
        left(arguments.url, arguments.generator)
        if arguments.bfloat16:
            pairs(client, arguments.bfloat16, np.array([[1.5, -2.0]], bfloat16), "BF16")
        if arguments.text:
            pairs(client, arguments.text, np.array([["grüße", ""]], object), "BYTES")
        if arguments.repository:
            repository(client, arguments.repository)


if __name__ == "__main__":
    main()
