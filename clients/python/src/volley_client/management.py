"""Management of a cluster. Each method returns the JSON of the route, as the reference of the REST
interface describes it: a dict from `Client`, and an awaitable of one from `AsyncClient`."""

from __future__ import annotations

from typing import Any, Callable, Dict, Generic, List, Mapping, Optional, TypeVar
from urllib.parse import quote

from .errors import NotDeployedError

R = TypeVar("R")

Json = Dict[str, Any]
Send = Callable[[str, str, Mapping[str, Any], Any], R]
"""Method, path, query and body of a request to its answer."""


class _Resource(Generic[R]):
    def __init__(self, send: Send[R]) -> None:
        self._send = send


def _id(name: str) -> str:
    return quote(name, safe=":")


def _given(**fields: Any) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


class Models(_Resource[R]):
    """Models and their deployments."""

    _path = "/_plugins/_ml/models"

    def register(self, body: Mapping[str, Any], *, deploy: bool = False) -> R:
        """Registers a model, or its next version. `body` has `name`, `function_name`, `path` …"""
        return self._send("POST", f"{self._path}/_register", {"deploy": deploy}, dict(body))

    def get(self, model: str) -> R:
        """Returns a model, its state and its workers."""
        return self._send("GET", f"{self._path}/{_id(model)}", {}, None)

    def search(self, body: Optional[Mapping[str, Any]] = None) -> R:
        """Returns the models that match a query, or all."""
        return self._send("POST", f"{self._path}/_search", {}, dict(body or {}))

    def deploy(self, model: str, **fields: Any) -> R:
        """Deploys a version: `replicas`, `labels`, `min_replicas` and other fields."""
        return self._send("POST", f"{self._path}/{_id(model)}/_deploy", {}, fields)

    def undeploy(self, model: str, node_ids: Optional[List[str]] = None) -> R:
        """Undeploys a model from all workers, or from some."""
        body = _given(node_ids=node_ids)
        return self._send("POST", f"{self._path}/{_id(model)}/_undeploy", {}, body)

    def update(self, model: str, **fields: Any) -> R:
        """Changes the `description` or the `model_group_id`."""
        return self._send("PUT", f"{self._path}/{_id(model)}", {}, fields)

    def delete(self, model: str) -> R:
        """Deletes a model and all its versions."""
        return self._send("DELETE", f"{self._path}/{_id(model)}", {}, None)

    def pause(self, model: str) -> R:
        """Pauses a rollout."""
        return self._send("POST", f"{self._path}/{_id(model)}/_pause", {}, {})

    def resume(self, model: str) -> R:
        """Resumes a paused rollout."""
        return self._send("POST", f"{self._path}/{_id(model)}/_resume", {}, {})

    def rollback(self, model: str) -> R:
        """Restores the replaced version."""
        return self._send("POST", f"{self._path}/{_id(model)}/_rollback", {}, {})


class Connectors(_Resource[R]):
    """Connectors to remote models."""

    _path = "/_plugins/_ml/connectors"

    def create(self, body: Mapping[str, Any], *, test: bool = False) -> R:
        """Creates a connector. With `test`, one worker calls the server once."""
        return self._send("POST", f"{self._path}/_create", {"test": test}, dict(body))

    def get(self, connector: str) -> R:
        """Returns a connector."""
        return self._send("GET", f"{self._path}/{_id(connector)}", {}, None)

    def search(self, body: Optional[Mapping[str, Any]] = None) -> R:
        """Returns the connectors that match a query, or all."""
        return self._send("POST", f"{self._path}/_search", {}, dict(body or {}))

    def update(self, connector: str, body: Mapping[str, Any]) -> R:
        """Changes fields of a connector that no deployed model uses."""
        return self._send("PUT", f"{self._path}/{_id(connector)}", {}, dict(body))

    def delete(self, connector: str) -> R:
        """Deletes a connector."""
        return self._send("DELETE", f"{self._path}/{_id(connector)}", {}, None)


class _Named(_Resource[R]):
    """Objects with revisions under one name."""

    _path = ""

    def list(self) -> R:
        """Returns all of them."""
        return self._send("GET", self._path, {}, None)

    def get(self, name: str) -> R:
        """Returns one."""
        return self._send("GET", f"{self._path}/{_id(name)}", {}, None)

    def set(self, name: str, body: Mapping[str, Any], *, revision: Optional[int] = None) -> R:
        """Creates or replaces one; with `revision`, only if it still has that revision."""
        query = {"revision": revision}
        return self._send("PUT", f"{self._path}/{_id(name)}", query, dict(body))

    def delete(self, name: str, *, revision: Optional[int] = None) -> R:
        """Deletes one; with `revision`, only if it still has that revision."""
        query = {"revision": revision}
        return self._send("DELETE", f"{self._path}/{_id(name)}", query, None)


class Aliases(_Named[R]):
    """Aliases: names that send each request to one of several models. `set` takes `targets` …"""

    _path = "/_volley/aliases"


class Pipelines(_Named[R]):
    """Pipelines: graphs of models under one name. `set` takes `task`, `steps` …"""

    _path = "/_volley/pipelines"


class Keys(_Resource[R]):
    """API keys."""

    _path = "/_volley/keys"

    def list(self) -> R:
        """Returns all keys without their secrets."""
        return self._send("GET", self._path, {}, None)

    def create(self, name: str, role: str, **fields: Any) -> R:
        """Creates a key. The answer has it in `key`, only this once."""
        return self._send("POST", self._path, {}, {"name": name, "role": role, **fields})

    def get(self, key: str) -> R:
        """Returns a key without its secret."""
        return self._send("GET", f"{self._path}/{_id(key)}", {}, None)

    def revoke(self, key: str) -> R:
        """Revokes a key."""
        return self._send("DELETE", f"{self._path}/{_id(key)}", {}, None)

    def limit(self, key: str, limits: Mapping[str, int]) -> R:
        """Sets the limits of a key; limits that are not named end."""
        return self._send("POST", f"{self._path}/{_id(key)}/_limit", {}, {"limits": dict(limits)})

    def rotate(self, key: str, grace_s: Optional[int] = None) -> R:
        """Gives a key a new secret; the old one stays valid for `grace_s` seconds."""
        return self._send("POST", f"{self._path}/{_id(key)}/_rotate", {}, _given(grace_s=grace_s))


class Secrets(_Resource[R]):
    """Secrets of connectors."""

    _path = "/_volley/secrets"

    def list(self) -> R:
        """Returns the names of the secrets."""
        return self._send("GET", self._path, {}, None)

    def set(self, name: str, value: str) -> R:
        """Stores a secret."""
        return self._send("POST", f"{self._path}/{_id(name)}", {}, {"value": value})

    def delete(self, name: str) -> R:
        """Deletes a secret."""
        return self._send("DELETE", f"{self._path}/{_id(name)}", {}, None)


class Tasks(_Resource[R]):
    """Registrations, deployments and batches."""

    _path = "/_plugins/_ml/tasks"

    def get(self, task: str) -> R:
        """Returns the state of a task."""
        return self._send("GET", f"{self._path}/{_id(task)}", {}, None)

    def search(self, body: Optional[Mapping[str, Any]] = None) -> R:
        """Returns the tasks that match a query, or all."""
        return self._send("POST", f"{self._path}/_search", {}, dict(body or {}))

    def cancel(self, task: str) -> R:
        """Cancels a running batch."""
        return self._send("POST", f"{self._path}/{_id(task)}/_cancel", {}, {})

    def delete(self, task: str) -> R:
        """Deletes a task that is not running."""
        return self._send("DELETE", f"{self._path}/{_id(task)}", {}, None)


class ClusterOperations(_Resource[R]):
    """Nodes, settings and the caller."""

    def status(self) -> R:
        """Returns nodes, roles, the leader, replicas and load."""
        return self._send("GET", "/_volley/status", {}, None)

    def scale(self) -> R:
        """Returns the number of workers that the cluster could use."""
        return self._send("GET", "/_volley/scale", {}, None)

    def whoami(self) -> R:
        """Returns the identity, the role and the limits of the caller."""
        return self._send("GET", "/_volley/whoami", {}, None)

    def settings(self) -> R:
        """Returns the cluster settings."""
        return self._send("GET", "/_cluster/settings", {"flat_settings": True}, None)

    def set_settings(self, persistent: Mapping[str, Any]) -> R:
        """Sets cluster settings; `None` resets one."""
        return self._send("PUT", "/_cluster/settings", {}, {"persistent": dict(persistent)})

    def drain(self, node: str, *, force: Optional[bool] = None, kind: Optional[str] = None) -> R:
        """Takes a node out of service without failed requests."""
        body = _given(force=force, kind=kind)
        return self._send("POST", f"/_volley/nodes/{_id(node)}/drain", {}, body)

    def undrain(self, node: str, *, kind: Optional[str] = None) -> R:
        """Returns a drained node to service."""
        return self._send("POST", f"/_volley/nodes/{_id(node)}/undrain", {}, _given(kind=kind))

    def join(self, coordinator: int, address: str) -> R:
        """Adds a coordinator."""
        body = {"id": coordinator, "address": address}
        return self._send("POST", "/_volley/nodes/join", {}, body)

    def leave(self, coordinator: int) -> R:
        """Removes a coordinator."""
        return self._send("POST", f"/_volley/nodes/{coordinator}/leave", {}, {})

    def replace(self, coordinator: int, by: int, address: str) -> R:
        """Replaces a coordinator, which may be dead, by a new one."""
        body = {"id": by, "address": address}
        return self._send("POST", f"/_volley/nodes/{coordinator}/replace", {}, body)

    def transfer_leadership(self, to: Optional[int] = None) -> R:
        """Makes another coordinator the leader."""
        return self._send("POST", "/_volley/leader/transfer", {}, _given(to=to))


class Management(Generic[R]):
    """All of them, for one client."""

    def __init__(self, send: Send[R]) -> None:
        self.models: Models[R] = Models(send)
        """Models and their deployments."""
        self.connectors: Connectors[R] = Connectors(send)
        """Connectors to remote models."""
        self.aliases: Aliases[R] = Aliases(send)
        """Aliases."""
        self.pipelines: Pipelines[R] = Pipelines(send)
        """Pipelines."""
        self.keys: Keys[R] = Keys(send)
        """API keys."""
        self.secrets: Secrets[R] = Secrets(send)
        """Secrets of connectors."""
        self.tasks: Tasks[R] = Tasks(send)
        """Registrations, deployments and batches."""
        self.cluster: ClusterOperations[R] = ClusterOperations(send)
        """Nodes, settings and the caller."""


def is_deployed(model: Mapping[str, Any]) -> bool:
    """Returns whether every replica of a model serves.

    Raises:
        NotDeployedError: The deployment failed; the message has the reasons.
    """
    if model["model_state"] == "DEPLOY_FAILED":
        raise NotDeployedError(
            f"model '{model['model_id']}' cannot be deployed: {model['failures']}"
        )
    return bool(model["model_state"] == "DEPLOYED")
