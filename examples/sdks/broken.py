"""The official clients are told that an answer broke off: a model whose server goes away in the
middle of one, behind a Volley cluster.

    pip install openai anthropic cohere ollama langchain-openai opensearch-py httpx httpx-sse
    python broken.py --url http://127.0.0.1:8420 --model cut

Streamed, each client has what came before and then its own error, never a good end; whole, it has the
error alone. Prints one line for each step; fails on the first that is not as it should be.
"""

import argparse
import json

import anthropic
import cohere
import httpx
import ollama
import openai
from httpx_sse import connect_sse
from langchain_openai import ChatOpenAI
from opensearchpy import OpenSearch
from opensearchpy.exceptions import TransportError
from opensearchpy.serializer import TextSerializer

PROMPT = "Tell me a story about a fox."
ASKED = [{"role": "user", "content": PROMPT}]


class Events(TextSerializer):
    """Events come as the text that they are."""

    mimetype = "text/event-stream"


def said(step, text):
    print(json.dumps({"step": step, "text": text}), flush=True)


def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def broken(step, kind, texts):
    """Reads texts until the client says that there will be no more; what came before."""
    text = ""
    try:
        for piece in texts:
            text += piece or ""
    except kind as error:
        assert text, f"{step}: nothing came before {error!r}"
        said(step, str(error))
        return
    raise AssertionError(f"{step}: '{text}' was given out for a whole answer")


def with_openai(url, model):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
    chat, plain = client.chat.completions, client.completions
    events = chat.create(model=model, messages=ASKED, stream=True)
    texts = (choice.delta.content for event in events for choice in event.choices)
    broken("openai, chat", openai.APIError, texts)
    refused(openai.InternalServerError, lambda: chat.create(model=model, messages=ASKED))
    events = plain.create(model=model, prompt=PROMPT, stream=True)
    texts = (choice.text for event in events for choice in event.choices)
    broken("openai, completion", openai.APIError, texts)
    with client.responses.stream(model=model, input=PROMPT) as stream:
        kinds = [event.type for event in stream]
    assert "response.output_text.delta" in kinds and kinds[-1] == "response.failed", kinds
    assert "response.completed" not in kinds, kinds
    refused(openai.InternalServerError, lambda: client.responses.create(model=model, input=PROMPT))
    said("openai, response", kinds[-1])
    known = {"base_url": f"{url}/v1", "api_key": "unused", "max_retries": 0}
    chain = ChatOpenAI(model=model, **known)
    texts = (chunk.content for chunk in chain.stream(ASKED))
    broken("langchain", openai.APIError, texts)
    refused(openai.InternalServerError, lambda: chain.invoke(ASKED))


def with_anthropic(url, model):
    client = anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0)
    asked = {"model": model, "messages": ASKED, "max_tokens": 20}
    with client.messages.stream(**asked) as stream:
        broken("anthropic", anthropic.APIError, stream.text_stream)
    refused(anthropic.InternalServerError, lambda: client.messages.create(**asked))


def with_cohere(url, model):
    """Its form of a stream tells of a failure at the end, and its client hands that on."""
    client = cohere.ClientV2("unused", base_url=url)
    asked = {"model": model, "messages": ASKED, "request_options": {"max_retries": 0}}
    events = list(client.chat_stream(**asked))
    assert any(event.type == "content-delta" for event in events), events
    end = events[-1]
    assert end.type == "message-end" and end.delta.finish_reason == "ERROR", end
    assert end.delta.error and end.delta.usage is None, end
    error = refused(cohere.core.ApiError, lambda: client.chat(**asked))
    assert 500 <= error.status_code, error
    said("cohere", end.delta.error)


def with_ollama(url, model):
    client = ollama.Client(host=url)
    parts = client.chat(model=model, messages=ASKED, stream=True)
    texts = (part.message.content for part in parts)
    broken("ollama", ollama.ResponseError, texts)
    error = refused(ollama.ResponseError, lambda: client.chat(model=model, messages=ASKED))
    assert 500 <= error.status_code, error


def with_opensearch(url, model):
    serializers = {Events.mimetype: Events(), "text/plain": TextSerializer()}
    client = OpenSearch([url], max_retries=0, timeout=60, serializers=serializers)
    ml, body = client.plugins.ml, {"parameters": {"messages": ASKED}}
    told = ml.predict_model_stream(model_id=model, body=body)
    data = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: ")]
    assert 1 < len(data) and "error" in data[-1] and "is_last\": true" not in told, data
    error = refused(TransportError, lambda: ml.predict_model(model_id=model, body=body))
    assert 500 <= error.status_code, error
    said("opensearch-py", data[-1]["error"])


def with_httpx(url, model):
    with httpx.Client(base_url=url, timeout=60) as client:
        path = f"/v2/models/{model}/generate_stream"
        with connect_sse(client, "POST", path, json={"text_input": PROMPT}) as source:
            source.response.raise_for_status()
            told = [event.json() for event in source.iter_sse()]
    assert told[0]["text_output"] and list(told[-1]) == ["error"], told
    said("httpx-sse", told[-1]["error"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8420")
    parser.add_argument("--model", required=True)
    given = parser.parse_args()
    judges = (with_openai, with_anthropic, with_cohere, with_ollama, with_opensearch, with_httpx)
    for judge in judges:
        judge(given.url, given.model)


if __name__ == "__main__":
    main()
