"""Ollama's own client pointed at a Volley cluster.

    pip install ollama
    python ollama_client.py --url http://127.0.0.1:8420 --model storyteller

With --caller (a model whose template takes tools) it calls functions, with --embedder it embeds.
Prints one line for each step; fails on the first that is not as it should be.
"""

import argparse
import asyncio
import json

import ollama

ASKED = [{"role": "user", "content": "Tell me a story about a fox."}]
FORM = {
    "type": "object",
    "properties": {"animal": {"enum": ["fox", "hen"]}, "fast": {"type": "boolean"}},
    "required": ["animal", "fast"],
    "additionalProperties": False,
}


def said(step, text):
    print(json.dumps({"step": step, "text": text}), flush=True)


def refused(call, status):
    try:
        call()
    except ollama.ResponseError as error:
        assert error.status_code == status, error
        return error.error
    raise AssertionError("nothing was refused")


def chats(client, model):
    short = {"num_predict": 20, "temperature": 0}
    whole = client.chat(model=model, messages=ASKED, options=short)
    assert whole.done and whole.done_reason == "length" and whole.eval_count == 20
    said("chat", whole.message.content)
    parts = list(client.chat(model=model, messages=ASKED, options=short, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == 20 and parts[-1].prompt_eval_count == whole.prompt_eval_count
    said("chat, streamed", len(parts))
    formed = client.chat(model=model, messages=ASKED, format=FORM, options={"num_predict": 200})
    assert set(json.loads(formed.message.content)) == {"animal", "fast"}
    said("chat, of a form", formed.message.content)
    told = client.chat(model=model, messages=ASKED, options=short, logprobs=True, top_logprobs=2)
    assert len(told.logprobs) == 20 and len(told.logprobs[0].top_logprobs) == 2
    said("chat, probabilities", told.logprobs[0].token)

    plain = client.generate(model=model, prompt="Once upon a time", raw=True, options=short)
    assert plain.done and plain.response
    parts = client.generate(
        model=model, prompt="Once upon a time", raw=True, options=short, stream=True
    )
    assert "".join(part.response for part in parts) == plain.response
    said("generation", plain.response)
    assert client.generate(model=model).done_reason == "load"
    left = client.chat(
        model=model, messages=ASKED, options={"num_predict": 900}, stream=True
    )
    next(left)
    left.close()
    said("left", "in the middle")


def bad_input(client, model):
    refused(lambda: client.chat(model="nobody", messages=ASKED), 404)
    refused(lambda: list(client.chat(model="nobody", messages=ASKED, stream=True)), 404)
    refused(lambda: client.chat(model=model, messages=ASKED, options={"temperature": -1}), 400)
    refused(lambda: client.chat(model=model, messages=ASKED, options={"top_p": 7}), 400)
    refused(lambda: client.embed(model=model, input="x"), 400)
    refused(lambda: client.show("nobody"), 404)
    refused(lambda: client.pull("nobody"), 404)
    said("refused", "bad input")


def lists(client, model):
    assert model in [each.model for each in client.list().models]
    assert model in [each.model for each in client.ps().models]
    assert "completion" in client.show(model).capabilities
    assert client.pull(model).status == "success"
    assert [each.status for each in client.pull(model, stream=True)] == ["success"]
    said("models", model)


def embeds(client, embedder):
    told = client.embed(model=embedder, input=["the quick fox", "a small crow"])
    assert len(told.embeddings) == 2 and told.prompt_eval_count > 0
    short = client.embed(model=embedder, input="the quick fox", dimensions=4)
    assert len(short.embeddings[0]) == 4
    one = client.embeddings(model=embedder, prompt="the quick fox")
    near = zip(one.embedding, told.embeddings[0])
    assert all(abs(a - b) < 1e-3 for a, b in near)
    said("embeddings", len(one.embedding))


def calls(client, caller):
    tool = {"type": "function", "function": {"name": "find", "parameters": FORM}}
    asked = {"model": caller, "messages": ASKED, "tools": [tool], "options": {"num_predict": 40}}
    whole = client.chat(**asked)
    parts = list(client.chat(**asked, stream=True))
    assert whole.done and parts[-1].done
    turn = [
        {"role": "assistant", "content": "", "tool_calls": [
            {"function": {"name": "find", "arguments": {"animal": "fox"}}}]},
        {"role": "tool", "content": "found", "tool_name": "find"},
    ]
    again = client.chat(**(asked | {"messages": ASKED + turn}))
    assert again.done
    said("tools", again.done_reason)


async def at_once(url, model):
    client = ollama.AsyncClient(host=url)

    async def one(seed):
        text = ""
        options = {"num_predict": 9, "seed": seed}
        async for part in await client.chat(
            model=model, messages=ASKED, options=options, stream=True
        ):
            text += part.message.content
        return text

    texts = await asyncio.gather(*(one(seed) for seed in range(4)))
    assert all(texts)
    said("four at once", len(texts))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:8420")
    parser.add_argument("--model", default="storyteller")
    parser.add_argument("--caller")
    parser.add_argument("--embedder")
    given = parser.parse_args()
    client = ollama.Client(host=given.url)
    lists(client, given.model)
    chats(client, given.model)
    bad_input(client, given.model)
    asyncio.run(at_once(given.url, given.model))
    if given.embedder:
        embeds(client, given.embedder)
    if given.caller:
        calls(client, given.caller)


if __name__ == "__main__":
    main()
