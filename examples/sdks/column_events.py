"""Streams of columns, read with the clients of others: tritonclient and MLServer's own messages over
gRPC, httpx-sse over REST, and pyarrow over Arrow Flight.

    python column_events.py --triton 127.0.0.1:8420 --model words
    python column_events.py --mlserver 127.0.0.1:8420 --grpc 127.0.0.1:8081 --model text-model
    python column_events.py --flight 127.0.0.1:8421 --model words

The model `words` streams an event for each word of a prompt: its `token` and its `score`. The model
`text-model` is the one of MLServer's documentation. Prints one line for each step; fails on the
first that is not as it should be.
"""

import argparse
import asyncio
import json
import queue

PROMPT = "What is the capital of France?"
WORDS = PROMPT.split()


def said(step, found):
    print(json.dumps({"step": step, "found": found}), flush=True)


def with_triton(address, model):
    import numpy
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    def inputs(prompt):
        tensor = triton.InferInput("prompt", [1], "BYTES")
        tensor.set_data_from_numpy(numpy.array([prompt], dtype=object))
        return [tensor]

    with triton.InferenceServerClient(address) as client:
        metadata = client.get_model_metadata(model, as_json=True)
        assert [one["name"] for one in metadata["outputs"]] == ["token", "score"], metadata
        config = client.get_model_config(model, as_json=True)["config"]
        assert config["model_transaction_policy"]["decoupled"], config
        said("metadata", metadata["platform"])

        answers = queue.Queue()
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        for number in ("1", "2"):
            client.async_stream_infer(
                model, inputs(PROMPT), request_id=number, enable_empty_final_response=True)
        tokens = {"1": [], "2": []}
        open_requests = {"1", "2"}
        while open_requests:
            result, error = answers.get(timeout=60)
            assert error is None, error
            response = result.get_response()
            if response.parameters["triton_final_response"].bool_param:
                assert not response.outputs, response
                open_requests.remove(response.id)
                continue
            tokens[response.id].append(result.as_numpy("token")[0].decode())
            score = result.as_numpy("score")
            assert score.dtype == numpy.float64 and score.shape == (1,), score
        assert tokens == {"1": WORDS, "2": WORDS}, tokens
        said("stream", tokens["1"])

        # One output, and no last message where the client does not ask for it.
        wanted = [triton.InferRequestedOutput("score")]
        client.async_stream_infer(model, inputs("a b"), outputs=wanted)
        scores = [answers.get(timeout=60)[0] for _ in range(2)]
        assert [one.as_numpy("token") is None for one in scores] == [True, True]
        client.async_stream_infer(model, inputs("fail here"))
        result, error = answers.get(timeout=60)
        assert error is not None and "no failures" in str(error), (result, error)
        said("error", str(error))
        client.stop_stream()

        once = client.infer(model, inputs("one"))
        assert once.as_numpy("token")[0] == b"one"
        try:
            client.infer(model, inputs(PROMPT))
            raise AssertionError("several events were one answer")
        except InferenceServerException as error:
            assert "ModelStreamInfer" in str(error), error
            said("unary", str(error))


def with_mlserver(rest, address, model):
    import grpc
    import httpx
    import mlserver.grpc.converters as converters
    import mlserver.grpc.dataplane_pb2_grpc as dataplane
    import mlserver.types as types
    from httpx_sse import connect_sse
    from mlserver.codecs import StringCodec

    def request(use_bytes=False):
        return types.InferenceRequest(
            inputs=[StringCodec.encode_input("prompt", [PROMPT], use_bytes=use_bytes)],
            outputs=[types.RequestOutput(name="output")])

    def text(response):
        return StringCodec.decode_output(response.outputs[0])[0]

    body = request().model_dump(exclude_none=True)
    with httpx.Client(base_url=f"http://{rest}", timeout=60) as client:
        for route in ("infer_stream", "generate_stream"):
            pieces = []
            with connect_sse(client, "POST", f"/v2/models/{model}/{route}", json=body) as source:
                for event in source.iter_sse():
                    response = types.InferenceResponse.model_validate_json(event.data)
                    assert response.outputs[0].name == "output", response
                    pieces.append(text(response))
            assert "".join(pieces) == PROMPT and len(pieces) == len(WORDS), pieces
            said(route, pieces)
        refused = client.post(f"/v2/models/{model}/infer", json=body)
        assert refused.status_code == 400 and "infer_stream" in refused.text, refused.text
        said("infer", refused.json()["error"])

    async def over_grpc():
        async def messages():
            yield converters.ModelInferRequestConverter.from_types(
                request(use_bytes=True), model_name=model, model_version=None)

        async with grpc.aio.insecure_channel(address) as channel:
            stub = dataplane.GRPCInferenceServiceStub(channel)
            pieces = []
            async for answer in stub.ModelStreamInfer(messages()):
                pieces.append(text(converters.ModelInferResponseConverter.to_types(answer)))
            assert "".join(pieces) == PROMPT and len(pieces) == len(WORDS), pieces
            said("gRPC", pieces)

    asyncio.run(over_grpc())


def with_flight(address, model):
    import pyarrow as pa
    import pyarrow.flight as flight

    client = flight.connect(f"grpc://{address}")

    def events(prompts):
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_path(model))
        batch = pa.record_batch([pa.array(prompts, pa.string())], names=["prompt"])
        writer.begin(batch.schema)
        writer.write_batch(batch)
        writer.done_writing()
        for chunk in reader:
            yield chunk.data

    batches = list(events([PROMPT]))
    assert batches[0].schema.names == ["token", "score", "event", "event_end"], batches[0].schema
    rows = [batch.to_pylist() for batch in batches]
    assert [row[0]["token"] for row in rows] == WORDS and {len(row) for row in rows} == {1}, rows
    assert [row[0]["event"] for row in rows] == list(range(len(WORDS))), rows
    assert all(row[0]["event_end"] for row in rows), rows
    said("events", len(batches))
    try:
        list(events(["a", "b"]))
        raise AssertionError("two rows were one request")
    except (pa.ArrowInvalid, flight.FlightError) as error:
        assert "one row" in str(error), error
        said("two rows", "refused")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--triton", metavar="HOST:PORT")
    parser.add_argument("--mlserver", metavar="HOST:PORT")
    parser.add_argument("--grpc", metavar="HOST:PORT")
    parser.add_argument("--flight", metavar="HOST:PORT")
    parser.add_argument("--model", required=True)
    given = parser.parse_args()
    if given.triton:
        with_triton(given.triton, given.model)
    if given.mlserver:
        with_mlserver(given.mlserver, given.grpc, given.model)
    if given.flight:
        with_flight(given.flight, given.model)


if __name__ == "__main__":
    main()
