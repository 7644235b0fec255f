"""MLServer's documented streaming clients, pointed at a Volley cluster: httpx-sse over REST, and
MLServer's own messages and converters over gRPC.

    pip install mlserver httpx httpx-sse
    python oip_streams.py --rest 127.0.0.1:8420 --grpc 127.0.0.1:8081

Prints one line for each step; fails on the first that is not as it should be.
"""

import argparse
import asyncio
import gzip
import json

import grpc
import httpx
import mlserver.grpc.converters as converters
import mlserver.grpc.dataplane_pb2_grpc as dataplane
import mlserver.types as types
from httpx_sse import aconnect_sse, connect_sse
from mlserver.codecs import StringCodec

PROMPT = "Tell me a story about a fox."


def said(step, text):
    print(json.dumps({"step": step, "text": text}), flush=True)


def request(tokens, use_bytes=False, **more):
    """A request as MLServer's example of streaming has it; gRPC's texts are bytes."""
    return types.InferenceRequest(
        id="7",
        inputs=[StringCodec.encode_input("prompt", [PROMPT], use_bytes=use_bytes)],
        parameters=types.Parameters(max_tokens=tokens, **more),
        outputs=[],
    )


def text(response):
    return StringCodec.decode_output(response.outputs[0])[0]


def over_rest(url, model):
    body = request(12).model_dump(exclude_none=True)
    with httpx.Client(base_url=url, timeout=60) as client:
        whole = client.post(f"/v2/models/{model}/infer", json=body)
        whole = text(types.InferenceResponse.model_validate(whole.json()))
        said("whole", whole)
        # Both names are one in MLServer.
        for route in ["infer_stream", "generate_stream"]:
            pieces = []
            with connect_sse(client, "POST", f"/v2/models/{model}/{route}", json=body) as source:
                assert source.response.headers["content-encoding"] == "gzip"
                for event in source.iter_sse():
                    response = types.InferenceResponse.model_validate_json(event.data)
                    assert (response.id, response.model_name) == ("7", model), response
                    pieces.append(text(response))
            assert "".join(pieces) == whole and len(pieces) > 4, pieces
            assert response.parameters.finish_reason == "length", response.parameters
            said(route, len(pieces))

        packed = gzip.compress(json.dumps(body).encode())
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        again = client.post(f"/v2/models/{model}/generate", content=packed, headers=headers)
        assert text(types.InferenceResponse.model_validate(again.json())) == whole
        said("compressed", len(packed))

        for path, wrong, status in [
            ("nobody", body, 404),
            (model, {**body, "inputs": []}, 400),
            (model, {**body, "outputs": [{"name": "image"}]}, 400),
        ]:
            refused = client.post(f"/v2/models/{path}/infer_stream", json=wrong)
            assert refused.status_code == status, refused.text
            assert list(refused.json()) == ["error"], refused.text
        said("refused", refused.json()["error"])
    return whole


async def left(url, model):
    endless = request(900, ignore_eos=True).model_dump(exclude_none=True)
    async with httpx.AsyncClient(base_url=url) as client:
        path = f"/v2/models/{model}/infer_stream"
        async with aconnect_sse(client, "POST", path, json=endless) as source:
            async for event in source.aiter_sse():
                said("left", event.json()["id"])
                return


async def over_grpc(address, model, whole):
    async def once(message):
        yield message

    def message(name):
        return converters.ModelInferRequestConverter.from_types(
            request(12, use_bytes=True), model_name=name, model_version=None
        )

    async with grpc.aio.insecure_channel(address) as channel:
        stub = dataplane.GRPCInferenceServiceStub(channel)
        pieces = []
        async for answer in stub.ModelStreamInfer(once(message(model))):
            response = converters.ModelInferResponseConverter.to_types(answer)
            assert response.id == "7", response
            pieces.append(text(response))
        assert "".join(pieces) == whole and len(pieces) > 4, pieces
        said("gRPC", len(pieces))
        try:
            async for answer in stub.ModelStreamInfer(once(message("nobody"))):
                raise AssertionError("nothing was refused")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.NOT_FOUND, error
            said("gRPC refused", error.details())

        endless = converters.ModelInferRequestConverter.from_types(
            request(900, use_bytes=True, ignore_eos=True), model_name=model, model_version=None
        )
        call = stub.ModelStreamInfer(once(endless))
        await anext(aiter(call))
        assert call.cancel()
        said("gRPC left", "in the middle")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rest", metavar="HOST:PORT", required=True)
    parser.add_argument("--grpc", metavar="HOST:PORT", required=True)
    parser.add_argument("--model", default="storyteller")
    given = parser.parse_args()
    url = f"http://{given.rest}"
    whole = over_rest(url, given.model)
    asyncio.run(left(url, given.model))
    asyncio.run(over_grpc(given.grpc, given.model, whole))


if __name__ == "__main__":
    main()
