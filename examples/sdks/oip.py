"""The gRPC client of Triton, and both of KServe, pointed at a Volley cluster.

    pip install 'tritonclient[grpc]' kserve
    python oip.py --triton 127.0.0.1:8420
    python oip.py --kserve 127.0.0.1:8081
    python oip.py --kserve-rest 127.0.0.1:8420

The two cannot be loaded into one process: both bring messages of the same names. Prints one line
for each step; fails on the first that is not as it should be.
"""

import argparse
import asyncio
import json
import queue

import numpy as np

PIXELS = np.zeros((2, 8, 8), np.float32)
PROMPT = "Tell me a story about a fox."
ENDLESS = {"max_tokens": 900, "ignore_eos": True}


def said(step, text):
    print(json.dumps({"step": step, "text": text}), flush=True)


def with_triton(url, storyteller, classifier):
    import tritonclient.grpc as triton

    client = triton.InferenceServerClient(url)
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready(classifier) and not client.is_model_ready("nobody")
    assert client.get_server_metadata().name == "volley"
    metadata = client.get_model_metadata(classifier)
    assert list(metadata.inputs[0].shape) == [-1, 8, 8], metadata
    config = client.get_model_config(storyteller, as_json=True)["config"]
    assert config["model_transaction_policy"]["decoupled"]
    index = {model.name: model.state for model in client.get_model_repository_index().models}
    assert index[storyteller] == "READY"
    said("described", metadata.platform)

    pixels = triton.InferInput("pixels", [2, 8, 8], "FP32")
    pixels.set_data_from_numpy(PIXELS)
    wanted = [triton.InferRequestedOutput("label")]
    answer = client.infer(classifier, [pixels], request_id="7", outputs=wanted)
    labels = answer.as_numpy("label")
    assert labels.shape[0] == 2 and answer.get_response().id == "7"
    for algorithm in ["gzip", "deflate"]:
        squeezed = client.infer(classifier, [pixels], compression_algorithm=algorithm)
        assert (squeezed.as_numpy("label") == labels).all()
    said("tensors", labels.tolist())

    for call, code in [
        (lambda: client.infer("nobody", [pixels]), "StatusCode.NOT_FOUND"),
        (lambda: client.infer(storyteller, [pixels]), "StatusCode.INVALID_ARGUMENT"),
        (lambda: client.load_model("nobody"), "StatusCode.NOT_FOUND"),
    ]:
        try:
            call()
            raise AssertionError("nothing was refused")
        except triton.InferenceServerException as error:
            assert error.status() == code, error
            refused = error.message()
    client.load_model(classifier)
    said("refused", refused)

    def prompt(text):
        given = triton.InferInput("text_input", [1], "BYTES")
        given.set_data_from_numpy(np.array([text.encode()], np.object_))
        return [given]

    def text(result):
        texts = result.as_numpy("text_output")
        return "" if texts is None else texts[0].decode()

    few = {"max_tokens": 12}
    whole = text(client.infer(storyteller, prompt(PROMPT), parameters=few))
    said("generated", whole)

    answers = queue.Queue()
    client.start_stream(callback=lambda result, error: answers.put((result, error)))
    asked = {"1": storyteller, "2": "nobody", "3": storyteller}
    for request_id, model in asked.items():
        client.async_stream_infer(
            model,
            prompt(PROMPT),
            request_id=request_id,
            parameters=few,
            enable_empty_final_response=True,
        )
    texts, failed, ended, pieces = {"1": "", "3": ""}, 0, 0, 0
    while ended + failed < len(asked):
        result, error = answers.get(timeout=30)
        if error is not None:
            failed += 1
            continue
        response = result.get_response()
        pieces += len(response.outputs)
        texts[response.id] += text(result)
        ended += response.parameters["triton_final_response"].bool_param
    client.stop_stream()
    assert texts == {"1": whole, "3": whole} and failed == 1 and pieces > 4
    said("streamed", pieces)

    client.start_stream(callback=lambda result, error: answers.put((result, error)))
    endless = {"max_tokens": 900, "ignore_eos": True}
    client.async_stream_infer(storyteller, prompt(PROMPT), parameters=endless)
    answers.get(timeout=30)
    client.stop_stream(cancel_requests=True)
    said("left", "in the middle")

    try:
        client.infer(storyteller, prompt(PROMPT), parameters=endless, client_timeout=0.05)
        raise AssertionError("a deadline was not kept")
    except triton.InferenceServerException as error:
        assert error.status() == "StatusCode.DEADLINE_EXCEEDED", error
    [counted] = client.get_inference_statistics(classifier).model_stats
    assert counted.inference_count >= 6 and counted.inference_stats.success.ns > 0
    said("counted", counted.inference_count)
    asyncio.run(with_asyncio(url, storyteller, prompt(PROMPT), whole))


async def with_asyncio(url, storyteller, prompt, whole):
    import tritonclient.grpc.aio as triton

    async with triton.InferenceServerClient(url) as client:

        async def requests():
            yield {"model_name": storyteller, "inputs": prompt, "parameters": {"max_tokens": 12}}

        text = ""
        async for result, error in client.stream_infer(requests()):
            assert error is None, error
            text += result.as_numpy("text_output")[0].decode()
        assert text == whole
    said("streamed, with asyncio", text)


async def with_kserve(url, storyteller, classifier):
    import grpc
    from kserve import InferenceGRPCClient, InferInput, InferRequest

    async with InferenceGRPCClient(url, retries=2) as client:
        assert await client.is_server_live() and await client.is_server_ready()
        assert await client.is_model_ready(classifier)
        said("ready", classifier)
        for raw in [False, True]:
            pixels = InferInput("pixels", [2, 8, 8], "FP32")
            pixels.set_data_from_numpy(PIXELS, binary_data=raw)
            answer = await client.infer(InferRequest(classifier, [pixels], request_id="7"))
            assert answer.id == "7", answer
            said("tensors, raw" if raw else "tensors", answer.outputs[0].as_numpy().tolist())
        prompt = InferInput("text_input", [1], "BYTES", [PROMPT])
        request = InferRequest(storyteller, [prompt], parameters={"max_tokens": 12})
        answer = await client.infer(request)
        [text] = answer.outputs[0].data
        said("generated", text if isinstance(text, str) else text.decode())
        short = InferInput("pixels", [2, 8, 8], "FP32", [0.0])
        for request, code in [
            (InferRequest(classifier, [short]), grpc.StatusCode.INVALID_ARGUMENT),
            (InferRequest("nobody", [prompt]), grpc.StatusCode.NOT_FOUND),
        ]:
            try:
                await client.infer(request)
                raise AssertionError("nothing was refused")
            except grpc.RpcError as error:
                assert error.code() == code, error
                refused = error.details()
        said("refused", refused)
        endless = InferRequest(storyteller, [prompt], parameters=dict(ENDLESS))
        await leave(client.infer(endless))


async def with_kserve_rest(url, storyteller, classifier):
    import httpx
    from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0, timeout=60))
    assert await client.is_server_live(url) and await client.is_server_ready(url)
    assert await client.is_model_ready(url, classifier)
    assert not await client.is_model_ready(url, "nobody")
    said("ready", classifier)
    for raw in [False, True]:
        pixels = InferInput("pixels", [2, 8, 8], "FP32")
        pixels.set_data_from_numpy(PIXELS, binary_data=raw)
        request = InferRequest(classifier, [pixels], request_id="7")
        answer = await client.infer(url, request, classifier)
        assert answer.id == "7", answer
        said("tensors, raw" if raw else "tensors", answer.outputs[0].as_numpy().tolist())
    prompt = InferInput("text_input", [1], "BYTES", [PROMPT])
    request = InferRequest(storyteller, [prompt], parameters={"max_tokens": 12})
    answer = await client.infer(url, request, storyteller)
    said("generated", answer.outputs[0].data)
    short = InferInput("pixels", [2, 8, 8], "FP32", [0.0])
    for request, status in [
        (InferRequest(classifier, [short]), 400),
        (InferRequest("nobody", [prompt]), 404),
    ]:
        try:
            await client.infer(url, request, request.model_name)
            raise AssertionError("nothing was refused")
        except httpx.HTTPStatusError as error:
            assert error.response.status_code == status, error
            refused = error.response.json()["error"]
    said("refused", refused)
    endless = InferRequest(storyteller, [prompt], parameters=dict(ENDLESS))
    await leave(client.infer(url, endless, storyteller))
    await client.close()


async def leave(call):
    """Goes away while the answer is made."""
    try:
        await asyncio.wait_for(call, 0.1)
        raise AssertionError("the answer was there already")
    except asyncio.TimeoutError:
        said("left", "in the middle")


def main():
    parser = argparse.ArgumentParser()
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--triton", metavar="HOST:PORT")
    which.add_argument("--kserve", metavar="HOST:PORT")
    which.add_argument("--kserve-rest", metavar="HOST:PORT")
    parser.add_argument("--model", default="storyteller")
    parser.add_argument("--classifier", default="classifier")
    given = parser.parse_args()
    if given.triton:
        with_triton(given.triton, given.model, given.classifier)
    elif given.kserve:
        asyncio.run(with_kserve(given.kserve, given.model, given.classifier))
    else:
        url = f"http://{given.kserve_rest}"
        asyncio.run(with_kserve_rest(url, given.model, given.classifier))


if __name__ == "__main__":
    main()
