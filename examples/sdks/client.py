"""The official clients of OpenAI and Anthropic, pointed at a Volley cluster.

    pip install openai anthropic
    python client.py --url http://127.0.0.1:8420 --model storyteller

With --embedder and --reranker it embeds and ranks too. Prints one line for each step; fails on
the first that is not as it should be.
"""

import argparse
import json

import anthropic
import openai

ASKED = [{"role": "user", "content": "Tell me a story about a fox."}]
FORM = {
    "type": "json_schema",
    "json_schema": {
        "name": "animal",
        "schema": {
            "type": "object",
            "properties": {"animal": {"enum": ["fox", "hen"]}, "fast": {"type": "boolean"}},
            "required": ["animal", "fast"],
            "additionalProperties": False,
        },
    },
}


def said(step, text):
    print(json.dumps({"step": step, "text": text}), flush=True)


def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def with_openai(url, model):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
    assert model in [each.id for each in client.models.list()]
    chat = client.chat.completions

    whole = chat.create(model=model, messages=ASKED, max_tokens=20, logprobs=True)
    choice = whole.choices[0]
    assert choice.finish_reason == "length" and whole.usage.completion_tokens == 20
    assert choice.logprobs.content[0].logprob <= 0
    said("chat", choice.message.content)

    text, usage = "", None
    options = {"include_usage": True}
    for event in chat.create(
        model=model, messages=ASKED, max_tokens=20, stream=True, stream_options=options
    ):
        usage = event.usage or usage
        text += "".join(choice.delta.content or "" for choice in event.choices)
    assert text == choice.message.content and usage.completion_tokens == 20
    said("chat, streamed", text)

    several = chat.create(model=model, messages=ASKED, max_tokens=9, n=3, seed=1, temperature=2)
    assert len({each.message.content for each in several.choices}) > 1
    said("chat, three answers", [each.message.content for each in several.choices])

    formed = chat.create(model=model, messages=ASKED, response_format=FORM, max_tokens=200)
    animal = json.loads(formed.choices[0].message.content)
    assert set(animal) == {"animal", "fast"}
    said("chat, of a form", animal)

    plain = client.completions.create(model=model, prompt=["Once", "Hello"], max_tokens=4)
    assert [each.index for each in plain.choices] == [0, 1]
    said("completion", [each.text for each in plain.choices])

    error = refused(openai.NotFoundError, lambda: chat.create(model="nobody", messages=ASKED))
    assert error.code == "model_not_found"
    bad = refused(
        openai.BadRequestError, lambda: chat.create(model=model, messages=ASKED, temperature=-1)
    )
    assert bad.param == "temperature", bad.param
    said("refused", bad.message)

    left = chat.create(
        model=model, messages=ASKED, max_tokens=900, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(left))
    left.close()
    said("left", "in the middle")
    return client


def with_responses(client, model):
    responses = client.responses
    whole = responses.create(model=model, input=ASKED, instructions="Be brief.", max_output_tokens=20)
    assert whole.status == "incomplete" and whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage.output_tokens == 20 and not whole.store
    said("response", whole.output_text)

    counted = responses.input_tokens.count(model=model, input=ASKED, instructions="Be brief.")
    assert counted.input_tokens == whole.usage.input_tokens
    said("response, tokens", counted.input_tokens)

    kinds, text = [], ""
    # The client builds the response from the events, and checks their order.
    with responses.stream(
        model=model, input=ASKED, instructions="Be brief.", max_output_tokens=20
    ) as stream:
        for number, event in enumerate(stream):
            assert event.sequence_number == number
            kinds.append(event.type.removeprefix("response."))
            text += event.delta if event.type == "response.output_text.delta" else ""
    assert text == whole.output_text
    assert [kind for kind in kinds if kind != "output_text.delta"] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ]
    said("response, streamed", text)

    form = {"type": "json_schema"} | FORM["json_schema"]
    formed = responses.create(
        model=model, input="Which animal?", text={"format": form}, max_output_tokens=200
    )
    assert formed.status == "completed" and set(json.loads(formed.output_text)) == {"animal", "fast"}
    said("response, of a form", formed.output_text)

    stored = refused(
        openai.BadRequestError,
        lambda: responses.create(model=model, input="Hi", previous_response_id=whole.id),
    )
    assert stored.param == "previous_response_id"
    said("refused", stored.message)


def with_anthropic(url, model):
    client = anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0)
    whole = client.messages.create(model=model, messages=ASKED, max_tokens=20)
    assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 20
    said("message", whole.content[0].text)
    counted = client.messages.count_tokens(model=model, messages=ASKED)
    read = whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    assert counted.input_tokens == read
    said("tokens", counted.input_tokens)
    with client.messages.stream(model=model, messages=ASKED, max_tokens=20) as stream:
        text = "".join(stream.text_stream)
        assert stream.get_final_message().stop_reason == "max_tokens"
    assert text == whole.content[0].text
    said("message, streamed", text)
    error = refused(
        anthropic.NotFoundError,
        lambda: client.messages.create(model="nobody", messages=ASKED, max_tokens=1),
    )
    said("refused", error.body["error"]["message"])


def vectors(client, embedder, reranker):
    texts = ["the quick fox", "a small crow"]
    # The client asks for base64 and reads it.
    given = client.embeddings.create(model=embedder, input=texts)
    plain = client.embeddings.create(model=embedder, input=texts, encoding_format="float")
    assert [each.embedding for each in given.data] == [each.embedding for each in plain.data]
    short = client.embeddings.create(model=embedder, input="the quick fox", dimensions=4)
    assert len(short.data[0].embedding) == 4
    said("embeddings", len(given.data[0].embedding))
    body = {"model": reranker, "query": "who is quick?", "documents": texts, "top_n": 1}
    ranked = client.post("/rerank", body=body, cast_to=object)
    assert len(ranked["results"]) == 1
    said("rerank", ranked["results"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:8420")
    parser.add_argument("--model", default="storyteller")
    parser.add_argument("--embedder")
    parser.add_argument("--reranker")
    given = parser.parse_args()
    client = with_openai(given.url, given.model)
    with_responses(client, given.model)
    with_anthropic(given.url, given.model)
    if given.embedder and given.reranker:
        vectors(client, given.embedder, given.reranker)


if __name__ == "__main__":
    main()
