"""Models, aliases, pipelines, keys and nodes."""

from __future__ import annotations

import pytest

from cluster import MODELS, until
from volley_client import errors


def test_a_model_is_registered_deployed_and_deleted(cluster, client):
    client.models.register(
        {"name": "passing", "function_name": "onnx", "path": str(MODELS / "text-embed")}
    )
    with pytest.raises(errors.NotDeployedError):
        client.embed("passing", ["x"])
    client.models.deploy("passing", replicas=1)
    client.wait_until_deployed("passing", 60)
    assert len(client.embed("passing:1", ["x"])) == 1
    client.models.update("passing", description="for a moment")
    hits = client.models.search({"query": {"term": {"name": "passing"}}})["hits"]["hits"]
    assert [hit["_source"]["description"] for hit in hits] == ["for a moment"]
    client.models.undeploy("passing")
    until("it can be deleted", lambda: client.models.get("passing")["model_state"] == "UNDEPLOYED")
    client.models.delete("passing")
    with pytest.raises(errors.NotFoundError):
        client.models.get("passing")


def test_a_failed_deployment_says_why(client):
    client.models.register({"name": "absent", "function_name": "onnx", "path": "/no/such/model"})
    client.models.deploy("absent")
    with pytest.raises(errors.NotDeployedError, match="cannot be deployed"):
        client.wait_until_deployed("absent", 60)
    client.models.undeploy("absent")
    client.models.delete("absent")


def test_an_alias_is_called_and_its_revisions_are_kept(client, transport):
    name = f"encoder-{transport}"
    made = client.aliases.set(name, {"targets": [{"model": "text-embed"}]})
    rows = client.embed(name, ["a dog"], transport=transport)
    assert rows.to_pylist() == client.embed("text-embed", ["a dog"]).to_pylist()
    assert name in [alias["name"] for alias in client.aliases.list()["aliases"]]
    with pytest.raises(errors.ConflictError):
        client.aliases.delete(name, revision=made["revision"] + 1)
    client.aliases.delete(name, revision=made["revision"])
    with pytest.raises(errors.NotFoundError):
        client.aliases.get(name)


def test_a_pipeline_is_called_like_a_model(client, transport):
    name = f"near-{transport}"
    steps = [
        {"name": "q", "model": "text-embed", "inputs": {"text": "request.query"}},
        {"name": "d", "model": "text-embed", "inputs": {"text": "request.text"}},
        {"name": "near", "similarity": {"left": "q.embedding", "right": "d.embedding"}},
    ]
    client.pipelines.set(name, {"task": "rerank", "steps": steps})
    documents = ["the bridge", "a dog"]
    best = client.rerank(name, "a dog", documents, transport=transport)
    assert best["index"].to_pylist()[0] == 1 and best["score"][0].as_py() == pytest.approx(
        1, abs=1e-4
    )
    assert client.pipelines.get(name)["task"] == "rerank"
    client.pipelines.delete(name)
    with pytest.raises(errors.InvalidInputError, match="step 'x'"):
        client.pipelines.set(name, {"task": "rerank", "steps": [{"name": "x", "nothing": 1}]})


def test_keys_are_made_and_revoked(locked):
    with locked.client() as admin:
        made = admin.keys.create("for-a-test", "viewer")
        assert made["key"].startswith("vly_")
        with locked.client(api_key=made["key"]) as viewer:
            assert viewer.cluster.whoami()["role"] == "viewer"
            with pytest.raises(errors.PermissionDeniedError):
                viewer.models.delete("storyteller")
        admin.keys.revoke(made["id"])
        with locked.client(api_key=made["key"]) as viewer:
            with pytest.raises(errors.UnauthenticatedError):
                viewer.cluster.whoami()


def test_a_node_is_drained_and_returned(mortal):
    with mortal.client() as client:
        assert {it["id"] for it in client.cluster.status()["workers"]} == {"worker-1", "worker-2"}
        assert client.cluster.drain("worker-2")["node"] == "worker-2"
        until("it is drained", lambda: client.cluster.status()["drains"][0]["state"] == "drained")
        assert client.cluster.undrain("worker-2")["state"] == "working"
        name = "volley.placement.strategy"
        client.cluster.set_settings({name: "pack"})
        # The calls go to one coordinator after the other.
        for _ in range(6):
            assert client.cluster.settings()["persistent"].get(name) == "pack"


def test_management_goes_to_a_coordinator_that_lives(mortal):
    mortal.coordinators[0].kill()
    with mortal.client() as client:
        for _ in range(6):
            until("a leader", lambda: client.cluster.status()["node"]["leader"])
