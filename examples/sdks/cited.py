"""The official clients of OpenAI, Anthropic and Cohere read what an answer refers to, whichever provider
stands behind the model.

    pip install openai anthropic cohere
    python cited.py --url http://127.0.0.1:8420 --model gpt-search --model claude

Prints one line for each model and client; fails on the first that is not as it should be.
"""

import argparse
import json

import anthropic
import cohere
import openai

ASKED = [{"role": "user", "content": "What of the fox?"}]


def said(step, text):
    print(json.dumps({"step": step, "text": text}), flush=True)


def passage(text, start, end):
    assert 0 <= start <= end <= len(text), (start, end, text)
    return text[start:end]


def chat(client, model):
    whole = client.chat.completions.create(model=model, messages=ASKED).choices[0].message
    cited = [each.url_citation for each in whole.annotations]
    assert cited and all(each.url for each in cited)
    text, streamed = "", []
    for event in client.chat.completions.create(model=model, messages=ASKED, stream=True):
        for choice in event.choices:
            text += choice.delta.content or ""
            streamed += (choice.delta.model_extra or {}).get("annotations", [])
    assert text == whole.content
    assert [each["url_citation"]["url"] for each in streamed] == [each.url for each in cited]
    said(f"{model}, chat", [passage(text, each.start_index, each.end_index) for each in cited])


def response(client, model):
    whole = client.responses.create(model=model, input="What of the fox?")
    told = whole.output[-1].content[0].annotations
    assert told and {each.type for each in told} <= {"url_citation", "file_citation"}
    with client.responses.stream(model=model, input="What of the fox?") as stream:
        added = [
            event.annotation
            for event in stream
            if event.type == "response.output_text.annotation.added"
        ]
        final = stream.get_final_response().output[-1].content[0].annotations
    assert len(added) == len(final) == len(told)
    said(f"{model}, response", [each.type for each in told])


def message(client, model):
    whole = client.messages.create(model=model, messages=ASKED, max_tokens=20)
    cited = [each for block in whole.content for each in block.citations or []]
    assert cited
    with client.messages.stream(model=model, messages=ASKED, max_tokens=20) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == "".join(block.text for block in whole.content)
    again = [each for block in final.content for each in block.citations or []]
    assert [each.type for each in again] == [each.type for each in cited]
    said(f"{model}, message", [each.type for each in cited])


def cohere_chat(client, model):
    whole = client.chat(model=model, messages=ASKED).message
    assert whole.citations and all(each.sources[0].id for each in whole.citations)
    text, streamed = "", []
    for event in client.chat_stream(model=model, messages=ASKED):
        if event.type == "content-delta":
            text += event.delta.message.content.text or ""
        elif event.type == "citation-start":
            streamed.append(event.delta.message.citations)
    assert text == "".join(part.text for part in whole.content if part.type == "text")
    sources = [[each.sources[0].id for each in told] for told in (streamed, whole.citations)]
    assert sources[0] == sources[1], sources
    for each in whole.citations:
        assert each.text == passage(text, each.start, each.end)
    said(f"{model}, cohere", sources[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8420")
    parser.add_argument("--model", action="append", required=True)
    given = parser.parse_args()
    house = openai.OpenAI(base_url=f"{given.url}/v1", api_key="unused", max_retries=0)
    other = anthropic.Anthropic(base_url=given.url, api_key="unused", max_retries=0)
    third = cohere.ClientV2("unused", base_url=given.url)
    for model in given.model:
        chat(house, model)
        response(house, model)
        message(other, model)
        cohere_chat(third, model)


if __name__ == "__main__":
    main()
