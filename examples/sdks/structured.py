"""LangChain's structured output from models of Anthropic and Google, and what OpenAI's own client
makes of answers that do not fit.

    pip install openai langchain-openai
    python structured.py --url http://127.0.0.1:8420 --model claude --model gemini

Each model must answer with an animal of at least one leg. Prints one line for each step; fails on
the first that is not as it should be.
"""

import argparse
import json

import openai
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

ASKED = [{"role": "user", "content": "Which animal is it?"}]


class Animal(BaseModel):
    """An animal."""

    name: str = Field(description="What it is called", min_length=2)
    legs: int = Field(ge=1, le=8)
    colour: str | None = None


SCHEMA = Animal.model_json_schema()


def said(step, text):
    print(json.dumps({"step": step, "text": text}), flush=True)


def with_langchain(url, model):
    chat = ChatOpenAI(model=model, base_url=f"{url}/v1", api_key="unused", max_retries=0)
    for method in ["json_schema", "function_calling"]:
        formed = chat.with_structured_output(Animal, method=method)
        animal = formed.invoke(ASKED)
        assert isinstance(animal, Animal) and animal.legs == 4, animal
        parts = list(formed.stream(ASKED))
        assert parts[-1] == animal, parts
        said(f"{model}, {method}", animal.name)
    plain = chat.with_structured_output(SCHEMA | {"title": "Animal"}, method="json_schema")
    assert plain.invoke(ASKED)["legs"] == 4
    loose = chat.with_structured_output(method="json_mode").invoke(ASKED)
    assert loose["legs"] == 4, loose
    said(f"{model}, json_mode", loose)
    strict = chat.with_structured_output(Animal, method="json_schema", strict=True, include_raw=True)
    told = strict.invoke(ASKED)
    assert told["parsed"].legs == 4 and told["parsing_error"] is None
    said(f"{model}, strict", told["parsed"].name)


def with_openai(url, model):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
    parsed = client.chat.completions.parse(model=model, messages=ASKED, response_format=Animal)
    assert parsed.choices[0].message.parsed.legs == 4
    response = client.responses.parse(model=model, input=ASKED, text_format=Animal)
    assert response.output_parsed.legs == 4
    said(f"{model}, parse", response.output_parsed.name)
    # The server's own form of the schema knows no such bound: the answer is checked all the same.
    schema = SCHEMA | {"properties": SCHEMA["properties"] | {"legs": {"type": "integer", "minimum": 6}}}
    form = {"type": "json_schema", "json_schema": {"name": "insect", "schema": schema}}
    try:
        client.chat.completions.create(model=model, messages=ASKED, response_format=form)
    except openai.InternalServerError as error:
        assert error.status_code == 502 and "'/legs' does not keep to 'minimum'" in str(error)
    else:
        raise AssertionError("an animal of four legs is no insect")
    said(f"{model}, checked", "four legs are too few")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8420")
    parser.add_argument("--model", action="append", required=True)
    given = parser.parse_args()
    for model in given.model:
        with_langchain(given.url, model)
        with_openai(given.url, model)


if __name__ == "__main__":
    main()
