"""The official clients of OpenAI, Anthropic and Cohere, and LangChain's classes, pointed at a
Volley cluster.

    pip install openai anthropic cohere langchain-openai
    python client.py --url http://127.0.0.1:8420 --model storyteller

With --caller (a model whose template takes tools) it calls functions, with --embedder and
--reranker it embeds and ranks too. Prints one line for each step; fails on
the first that is not as it should be.
"""

import argparse
import json

import anthropic
import cohere
import openai
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

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

    whole = chat.create(
        model=model, messages=ASKED, max_tokens=20, logprobs=True, top_logprobs=2
    )
    choice = whole.choices[0]
    assert len(choice.logprobs.content) == 20
    assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
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
    refused(
        openai.NotFoundError, lambda: chat.create(model="nobody", messages=ASKED, stream=True)
    )
    refused(openai.BadRequestError, lambda: client.embeddings.create(model=model, input="a fox"))
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
    assert whole.usage.output_tokens == 20 and whole.store
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

    follow = responses.create(
        model=model, input="And then?", previous_response_id=whole.id, max_output_tokens=5
    )
    assert follow.previous_response_id == whole.id
    assert responses.retrieve(whole.id).output_text == whole.output_text
    items = responses.input_items.list(follow.id).data
    assert [item.type for item in items] == ["message"] * 3
    responses.delete(whole.id)
    refused(openai.NotFoundError, lambda: responses.retrieve(whole.id))
    said("response, stored", follow.output_text)

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
    refused(
        anthropic.BadRequestError,
        lambda: client.messages.create(model=model, messages=ASKED, max_tokens=0),
    )
    said("refused", error.body["error"]["message"])
    listed = list(client.models.list(limit=1))
    assert model in [each.id for each in listed]
    assert client.models.retrieve(model).display_name == model
    said("message, models", len(listed))
    with client.messages.stream(model=model, messages=ASKED, max_tokens=900) as stream:
        next(iter(stream.text_stream))
    said("message, left", "in the middle")


def vectors(client, embedder):
    texts = ["the quick fox", "a small crow"]
    # The client asks for base64 and reads it.
    given = client.embeddings.create(model=embedder, input=texts)
    plain = client.embeddings.create(model=embedder, input=texts, encoding_format="float")
    assert [each.embedding for each in given.data] == [each.embedding for each in plain.data]
    short = client.embeddings.create(model=embedder, input="the quick fox", dimensions=4)
    assert len(short.data[0].embedding) == 4
    said("embeddings", len(given.data[0].embedding))


def cohere_chat(url, model, caller):
    client = cohere.ClientV2("unused", base_url=url)
    asked = {"model": model, "messages": ASKED, "max_tokens": 20}
    whole = client.chat(**asked, logprobs=True)
    assert whole.finish_reason == "MAX_TOKENS" and whole.usage.tokens.output_tokens == 20
    assert len(whole.logprobs) == 20
    said("cohere, chat", whole.message.content[0].text)
    kinds, text = [], ""
    for event in client.chat_stream(**asked):
        kinds.append(event.type)
        text += event.delta.message.content.text if event.type == "content-delta" else ""
    assert text == whole.message.content[0].text
    assert event.delta.finish_reason == "MAX_TOKENS" and event.delta.usage.tokens.output_tokens == 20
    assert [kind for kind in kinds if kind != "content-delta"] == [
        "message-start",
        "content-start",
        "content-end",
        "message-end",
    ]
    said("cohere, chat, streamed", text)
    schema = FORM["json_schema"]["schema"]
    form = {"type": "json_object", "json_schema": schema}
    formed = client.chat(model=model, messages=ASKED, max_tokens=200, response_format=form)
    assert set(json.loads(formed.message.content[0].text)) == {"animal", "fast"}
    for name, kind in [("nobody", cohere.errors.NotFoundError), ("", cohere.errors.BadRequestError)]:
        wrong = asked | {"model": name}
        refused(kind, lambda wrong=wrong: client.chat(**wrong))
        refused(kind, lambda wrong=wrong: next(iter(client.chat_stream(**wrong))))
    hot = refused(
        cohere.errors.BadRequestError, lambda: client.chat(**asked, temperature=-1)
    )
    said("cohere, refused", hot.body["message"])
    left = client.chat_stream(model=model, messages=ASKED, max_tokens=900)
    next(left)
    left.close()
    said("cohere, left", "in the middle")
    if not caller:
        return
    tool = {"type": "function", "function": {"name": "find", "parameters": schema}}
    events = client.chat_stream(
        model=caller, messages=ASKED, max_tokens=200, tools=[tool], tool_choice="REQUIRED"
    )
    name, arguments = "", ""
    for event in events:
        if event.type == "tool-call-start":
            name = event.delta.message.tool_calls.function.name
        elif event.type == "tool-call-delta":
            arguments += event.delta.message.tool_calls.function.arguments
    assert name == "find" and set(json.loads(arguments)) == {"animal", "fast"}
    assert event.delta.finish_reason == "TOOL_CALL"
    said("cohere, call", arguments)


def cohere_vectors(url, embedder):
    texts = ["the quick fox", "a small crow"]
    asked = {"model": embedder, "texts": texts, "input_type": "search_document"}
    first = cohere.Client("unused", base_url=url).embed(**asked)
    second = cohere.ClientV2("unused", base_url=url)
    told = second.embed(**asked, embedding_types=["float"])
    assert told.embeddings.float_ == first.embeddings and told.texts == texts
    assert 0 < told.meta.tokens.input_tokens
    coarse = asked | {"embedding_types": ["int8"]}
    refused(cohere.errors.BadRequestError, lambda: second.embed(**coarse))
    said("cohere, embeddings", len(first.embeddings[0]))


def with_cohere(url, reranker):
    texts = ["the quick fox", "a small crow"]
    asked = {"model": reranker, "query": "who is quick?", "documents": texts, "top_n": 1}
    first = cohere.Client("unused", base_url=url).rerank(**asked, return_documents=True)
    assert first.results[0].document.text in texts
    second = cohere.ClientV2("unused", base_url=url)
    ranked = second.rerank(**asked)
    assert len(ranked.results) == 1 and ranked.results[0].index == first.results[0].index
    assert 0 < ranked.meta.tokens.input_tokens
    said("rerank", ranked.results[0].relevance_score)
    error = refused(
        cohere.errors.NotFoundError, lambda: second.rerank(**(asked | {"model": "nobody"}))
    )
    bad = asked | {"documents": []}
    refused(cohere.errors.BadRequestError, lambda: second.rerank(**bad))
    said("refused", error.body["message"])


def with_langchain(url, model, embedder):
    known = {"base_url": f"{url}/v1", "api_key": "unused", "max_retries": 0}
    chat = ChatOpenAI(model=model, max_tokens=20, **known)
    whole = chat.invoke(ASKED)
    assert whole.usage_metadata["output_tokens"] == 20
    text = "".join(chunk.content for chunk in chat.stream(ASKED))
    assert text == whole.content
    said("langchain", text)
    lost = ChatOpenAI(model="nobody", **known)
    refused(openai.NotFoundError, lambda: lost.invoke(ASKED))
    refused(openai.NotFoundError, lambda: next(lost.stream(ASKED)))
    hot = ChatOpenAI(model=model, temperature=-1, **known)
    refused(openai.BadRequestError, lambda: hot.invoke(ASKED))
    left = ChatOpenAI(model=model, max_tokens=900, **known).stream(ASKED)
    next(left)
    left.close()
    said("langchain, refused and left", "in the middle")
    formed = ChatOpenAI(model=model, max_tokens=200, **known).with_structured_output(
        FORM["json_schema"]["schema"] | {"title": "animal"}, method="json_schema"
    )
    assert set(formed.invoke(ASKED)) == {"animal", "fast"}
    responses = ChatOpenAI(model=model, max_tokens=20, use_responses_api=True, **known)
    said("langchain, response", responses.invoke(ASKED).text)
    # By itself it sends token ids of OpenAI's own models.
    embeddings = OpenAIEmbeddings(model=embedder, check_embedding_ctx_length=False, **known)
    assert len(embeddings.embed_documents(["the quick fox", "a small crow"])) == 2
    for name, kind in [("nobody", openai.NotFoundError), (model, openai.BadRequestError)]:
        wrong = OpenAIEmbeddings(model=name, check_embedding_ctx_length=False, **known)
        refused(kind, lambda wrong=wrong: wrong.embed_query("the quick fox"))
    said("langchain, embeddings", len(embeddings.embed_query("the quick fox")))


def with_tools(client, url, caller):
    schema = FORM["json_schema"]["schema"]
    tools = [{"type": "function", "function": {"name": "find", "parameters": schema}}]
    asked = {"model": caller, "max_tokens": 200, "messages": ASKED}
    whole = client.chat.completions.create(**asked, tools=tools, tool_choice="required")
    assert whole.choices[0].finish_reason == "tool_calls"
    call = whole.choices[0].message.tool_calls[0].function
    assert call.name == "find" and set(json.loads(call.arguments)) == {"animal", "fast"}
    said("call", call.arguments)
    tool = {"type": "function", "name": "find", "parameters": schema, "strict": True}
    with client.responses.stream(
        model=caller, input=ASKED, tools=[tool], tool_choice={"type": "function", "name": "find"}
    ) as stream:
        done = [event for event in stream if event.type == "response.function_call_arguments.done"]
        final = stream.get_final_response()
    assert done[0].arguments == final.output[0].arguments and len(final.output) == 1
    said("call in a response", done[0].arguments)
    sdk = anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0)
    message = sdk.messages.create(
        **asked, tools=[{"name": "find", "input_schema": schema}], tool_choice={"type": "any"}
    )
    assert message.stop_reason == "tool_use" and set(message.content[0].input) == {"animal", "fast"}
    said("call in a message", message.content[0].input)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:8420")
    parser.add_argument("--model", default="storyteller")
    parser.add_argument("--caller")
    parser.add_argument("--embedder")
    parser.add_argument("--reranker")
    given = parser.parse_args()
    client = with_openai(given.url, given.model)
    with_responses(client, given.model)
    with_anthropic(given.url, given.model)
    cohere_chat(given.url, given.model, given.caller)
    if given.embedder and given.reranker:
        vectors(client, given.embedder)
        with_cohere(given.url, given.reranker)
        cohere_vectors(given.url, given.embedder)
        with_langchain(given.url, given.model, given.embedder)
    if given.caller:
        with_tools(client, given.url, given.caller)


if __name__ == "__main__":
    main()
