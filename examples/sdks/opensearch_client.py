"""OpenSearch's own client, opensearch-py, pointed at a Volley cluster: the whole life of a local
and of a remote model.

    pip install 'opensearch-py[async]'
    python opensearch_client.py --url http://127.0.0.1:8420 --path /models/encoder

The directory at --path is a text encoder that the workers see; the remote model is the cluster's
own --model, called over its OpenAI interface. Prints one line for each step; fails on the first
that is not as it should be.
"""

import argparse
import asyncio
import json
import time

from opensearchpy import AsyncOpenSearch, OpenSearch
from opensearchpy.exceptions import (
    ConflictError,
    ConnectionTimeout,
    NotFoundError,
    RequestError,
    TransportError,
)
from opensearchpy.serializer import TextSerializer


class Events(TextSerializer):
    """Events come as the text that they are."""

    mimetype = "text/event-stream"


def said(step, text):
    print(json.dumps({"step": step, "text": text}), flush=True)


def refused(kind, call, status=None):
    try:
        call()
    except kind as error:
        assert status is None or error.status_code == status, error
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def done(ml, task):
    """Waits until a task has ended."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        told = ml.get_task(task_id=task)
        if told["state"] not in ("CREATED", "RUNNING"):
            assert told["state"] == "COMPLETED", told
            return told
        time.sleep(0.05)
    raise AssertionError(f"task {task} did not end")


def settings(client):
    name = "plugins.ml_commons.only_run_on_ml_node"
    told = client.cluster.put_settings(body={"persistent": {name: "false"}}, flat_settings=True)
    assert told["acknowledged"] and told["persistent"] == {name: "false"}, told
    wrong = {"persistent": {"plugins.ml_commons.nothing": 1}}
    error = refused(RequestError, lambda: client.cluster.put_settings(body=wrong), 400)
    assert "not recognized" in error.info["error"]["reason"]
    shown = client.cluster.get_settings()
    assert shown["persistent"]["plugins"]["ml_commons"]["only_run_on_ml_node"] == "false"
    said("settings", told["persistent"])


def local(ml, path):
    group = ml.register_model_group(body={"name": "encoders", "description": "of texts"})
    group = group["model_group_id"]
    assert ml.get_model_group(model_group_id=group)["name"] == "encoders"
    body = {"query": {"match": {"name": "encoders"}}}
    assert ml.search_model_group(body=body)["hits"]["hits"][0]["_id"] == group
    said("group", group)

    made = ml.register_model(
        body={
            "name": "encoder",
            "function_name": "text_embedding",
            "version": "1.0.0",
            "model_group_id": group,
            "model_format": "ONNX",
            "path": path,
        }
    )
    assert made["status"] == "CREATED"
    model = done(ml, made["task_id"])["model_id"]
    said("registered", model)
    texts = {"text_docs": ["the quick fox", "a small crow"]}
    ask = {"model_id": model, "body": texts}
    refused(RequestError, lambda: ml.predict_model(**ask), 400)
    said("deployed", done(ml, ml.deploy_model(model_id=model)["task_id"])["worker_node"])

    told = ml.predict_model(**ask)["inference_results"]
    vector = told[0]["output"][0]
    assert len(told) == 2 and vector["name"] == "sentence_embedding"
    assert vector["shape"] == [len(vector["data"])] and vector["data_type"] == "FLOAT32"
    again = ml.predict(algorithm_name="text_embedding", model_id=model, body=texts)
    assert again["inference_results"] == told
    said("predicted", vector["shape"])
    for bad in [{}, {"text_docs": "x"}, {"text_docs": [1]}, {"colour": "red"}]:
        refused(RequestError, lambda body=bad: ml.predict_model(model_id=model, body=body), 400)
    refused(NotFoundError, lambda: ml.predict_model(model_id="nobody", body=texts), 404)
    stream = {"model_id": model, "body": texts}
    refused(RequestError, lambda: ml.predict_model_stream(**stream), 400)
    said("refused", "bad input")

    figures(ml, model)
    refused(ConflictError, lambda: ml.delete_model(model_id=model), 409)
    gone = ml.undeploy_model(model_id=model)
    assert [node["stats"] for node in gone.values()] == [{model: "UNDEPLOYED"}]
    assert ml.get_model(model_id=model)["model_state"] == "UNDEPLOYED"
    refused(ConflictError, lambda: ml.delete_model_group(model_group_id=group), 409)
    assert ml.delete_model(model_id=model)["result"] == "deleted"
    assert ml.delete_model_group(model_group_id=group)["result"] == "deleted"
    refused(NotFoundError, lambda: ml.get_model(model_id=model), 404)
    said("deleted", model)


def figures(ml, model):
    body = {
        "query": {
            "bool": {
                "must": [{"term": {"algorithm": "ONNX"}}, {"match": {"name": model}}],
                "must_not": [{"terms": {"model_state": ["DEPLOY_FAILED"]}}],
            }
        },
        "sort": [{"created_time": {"order": "desc"}}],
        "size": 1,
        "_source": ["name", "model_state"],
    }
    hit = ml.search_models(body=body)["hits"]["hits"][0]
    assert hit["_source"] == {"name": model, "model_state": "DEPLOYED"}, hit
    tasks = {"query": {"bool": {"must": [{"term": {"model_id": model}}]}}}
    tasks = ml.search_tasks(body=tasks)["hits"]["hits"]
    kinds = sorted(task["_source"]["task_type"] for task in tasks)
    assert kinds == ["DEPLOY_MODEL", "REGISTER_MODEL"]
    registered = next(it["_id"] for it in tasks if it["_source"]["task_type"] == "REGISTER_MODEL")
    assert ml.delete_task(task_id=registered)["result"] == "deleted"
    refused(NotFoundError, lambda: ml.get_task(task_id=registered), 404)
    profile = ml.get_profile_models(model_id=model)
    assert profile["models"][model]["model_state"] == "DEPLOYED"
    stats = ml.get_stats()
    counted = [node.get("models", {}).get(model) for node in stats["nodes"].values()]
    counted = [it["predict"]["ml_action_request_count"] for it in counted if it]
    assert stats["ml_model_count"] >= 1 and counted and counted[0] >= 2, stats
    only = ml.get_stats(stat="ml_connector_count")
    assert list(only) == ["ml_connector_count"]
    said("figures", counted[0])


def events(text):
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(each) for each in data]


def remote(ml, url, name):
    connector = {
        "name": "OpenAI chat",
        "description": "the cluster itself",
        "version": "1",
        "protocol": "http",
        "parameters": {"endpoint": url, "model": name},
        "actions": [
            {
                "action_type": "predict",
                "method": "POST",
                "url": "${parameters.endpoint}/v1/chat/completions",
                "headers": {"Content-Type": "application/json"},
                "request_body": '{"model":"${parameters.model}","messages":${parameters.messages}}',
            }
        ],
    }
    connector_id = ml.create_connector(body=connector)["connector_id"]
    assert ml.get_connector(connector_id=connector_id)["name"] == "OpenAI chat"
    found = ml.search_connectors(body={"query": {"match": {"name": "chat"}}})
    assert found["hits"]["hits"][0]["_id"] == connector_id
    said("connector", connector_id)

    body = {"name": "remote-chat", "function_name": "remote", "connector_id": connector_id}
    model = ml.register_model(body=body, params={"deploy": "true"})["model_id"]
    until = time.monotonic() + 60
    while ml.get_model(model_id=model)["model_state"] != "DEPLOYED":
        assert time.monotonic() < until
        time.sleep(0.05)
    messages = [{"role": "user", "content": "Tell me a story about a fox."}]
    asked = {"messages": messages, "max_tokens": 20, "temperature": 0}
    whole = ml.predict_model(model_id=model, body={"parameters": asked})
    text = whole["inference_results"][0]["output"][0]["dataAsMap"]["response"]
    said("remote", text)
    for interface in [
        "openai/v1/chat/completions",
        "bedrock/converse",
        "bedrock/converse/claude",
        "bedrock/converse/deepseek_r1",
        "gemini/v1beta/generatecontent",
    ]:
        body = {"parameters": asked | {"_llm_interface": interface}}
        told = events(ml.predict_model_stream(model_id=model, body=body))
        parts = [each["inference_results"][0]["output"][0]["dataAsMap"] for each in told]
        assert [part["is_last"] for part in parts] == [False] * (len(parts) - 1) + [True]
        assert "".join(part["content"] for part in parts) == text
    said("remote, streamed", len(parts))
    body = {"parameters": asked | {"_llm_interface": "acme"}}
    refused(RequestError, lambda: ml.predict_model_stream(model_id=model, body=body), 400)
    refused(RequestError, lambda: ml.predict_model(model_id=model, body={"parameters": {}}), 400)
    long = {"parameters": asked | {"max_tokens": 900, "ignore_eos": True}}
    refused(
        ConnectionTimeout,
        lambda: ml.predict_model_stream(model_id=model, body=long, params={"request_timeout": 0.001}),
    )
    said("left", "before the answer")
    asyncio.run(leave(url, model, long))

    change = {"parameters": {"temperature": 0.5}}
    path = f"/_plugins/_ml/connectors/{connector_id}"
    put = lambda: ml.transport.perform_request("PUT", path, body=change)
    error = refused(RequestError, put, 400)
    assert "undeploy the models first" in error.info["error"]["reason"]
    ml.undeploy_model(model_id=model, body={})
    assert put()["result"] == "updated"
    assert ml.get_connector(connector_id=connector_id)["parameters"] == {"temperature": 0.5}
    refused(ConflictError, lambda: ml.delete_connector(connector_id=connector_id), 409)
    ml.delete_model(model_id=model)
    assert ml.delete_connector(connector_id=connector_id)["result"] == "deleted"
    said("connector changed", "and deleted")


async def leave(url, model, body):
    """Goes away while events come."""
    serializers = {Events.mimetype: Events()}
    async with AsyncOpenSearch([url], max_retries=0, timeout=60, serializers=serializers) as client:
        streamed = client.plugins.ml.predict_model_stream(model_id=model, body=body)
        try:
            await asyncio.wait_for(streamed, 0.2)
            raise AssertionError("the answer was there already")
        except asyncio.TimeoutError:
            said("left", "in the middle")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:8420")
    parser.add_argument("--model", default="storyteller")
    parser.add_argument("--path", required=True)
    given = parser.parse_args()
    client = OpenSearch(
        [given.url],
        max_retries=0,
        timeout=60,
        serializers={Events.mimetype: Events(), "text/plain": TextSerializer()},
    )
    assert client.info()["name"] == "volley"
    settings(client)
    local(client.plugins.ml, given.path)
    remote(client.plugins.ml, given.url, given.model)
    refused(TransportError, lambda: client.plugins.ml.get_agent(agent_id="a"), 404)


if __name__ == "__main__":
    main()
