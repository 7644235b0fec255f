"""Typed exceptions: one class for each error code of the cluster, and the client's own."""

from __future__ import annotations

from typing import Dict, Optional, Type


class VolleyError(Exception):
    """A failed call.

    Attributes:
        message: What was wrong and what to do.
        code: The stable code of the cluster, such as ``"not_found"``; the classes below that have
            no code of the cluster have one of the client.
        status: The HTTP status, if the answer had one.
        retry_after: Seconds after which a later attempt can succeed, if the cluster knows.
        origin: ``"coordinator"``, ``"worker"`` or ``"model"``, if the cluster reports it.
        reason: What the code means more closely, such as ``"context_length_exceeded"``.
        request_id: The id of the request in the logs of the cluster.
    """

    code: str = "unknown"

    def __init__(
        self,
        message: str,
        *,
        code: Optional[str] = None,
        status: Optional[int] = None,
        retry_after: Optional[float] = None,
        origin: Optional[str] = None,
        reason: Optional[str] = None,
        request_id: Optional[str] = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        self.status = status
        self.retry_after = retry_after
        self.origin = origin
        self.reason = reason
        self.request_id = request_id

    def __str__(self) -> str:
        details = (
            self.code if self.request_id is None else f"{self.code}, request {self.request_id}"
        )
        return f"{self.message} ({details})"


class InvalidInputError(VolleyError):
    """The request is malformed: a column, a type, a shape or a parameter."""

    code = "invalid_input"


class UnauthenticatedError(VolleyError):
    """The request has no valid key."""

    code = "unauthenticated"


class PermissionDeniedError(VolleyError):
    """The key's role or models do not allow the request."""

    code = "permission_denied"


class NotFoundError(VolleyError):
    """The model, alias, pipeline, connector, task or route does not exist."""

    code = "not_found"


class NotDeployedError(VolleyError):
    """The model exists, but no version is deployed."""

    code = "not_deployed"


class ConflictError(VolleyError):
    """The object exists already, or it changed since it was read."""

    code = "conflict"


class TooLargeError(VolleyError):
    """A body, a message or a prompt exceeds a limit."""

    code = "too_large"


class OverloadedError(VolleyError):
    """A queue, a stream limit or a quota is full."""

    code = "overloaded"


class CancelledError(VolleyError):
    """The cluster ended the call because the caller left or cancelled it."""

    code = "cancelled"


class DeadlineExceededError(VolleyError):
    """The deadline passed before the work was done."""

    code = "deadline_exceeded"


class UnavailableError(VolleyError):
    """No replica, leader or quorum can serve the request now."""

    code = "unavailable"


class UpstreamFailedError(VolleyError):
    """The server of a remote model rejected the request or failed."""

    code = "upstream_failed"


class UpstreamTimeoutError(VolleyError):
    """The server of a remote model sent nothing in time."""

    code = "upstream_timeout"


class UpstreamIncompleteError(VolleyError):
    """The stream of a remote model ended without its terminator."""

    code = "upstream_incomplete"


class UnimplementedError(VolleyError):
    """The cluster does not offer the function."""

    code = "unimplemented"


class InternalError(VolleyError):
    """A defect in Volley or in the model."""

    code = "internal"


class ConnectionLostError(VolleyError):
    """The connection to a coordinator could not be made, or broke before the answer was complete."""

    code = "connection_lost"
    connected: bool = True
    """False if the request cannot have reached a coordinator."""


class StreamGoneError(VolleyError):
    """A resumable stream cannot be resumed: its time passed, or its coordinator was lost."""

    code = "stream_gone"


BY_CODE: Dict[str, Type[VolleyError]] = {
    kind.code: kind
    for kind in (
        InvalidInputError,
        UnauthenticatedError,
        PermissionDeniedError,
        NotFoundError,
        NotDeployedError,
        ConflictError,
        TooLargeError,
        OverloadedError,
        CancelledError,
        DeadlineExceededError,
        UnavailableError,
        UpstreamFailedError,
        UpstreamTimeoutError,
        UpstreamIncompleteError,
        UnimplementedError,
        InternalError,
    )
}
"""The class of each error code of the cluster."""


def of_code(
    code: str,
    message: str,
    *,
    status: Optional[int] = None,
    retry_after: Optional[float] = None,
    origin: Optional[str] = None,
    reason: Optional[str] = None,
    request_id: Optional[str] = None,
) -> VolleyError:
    """Returns the exception for a code of the cluster; `VolleyError` itself for an unknown one."""
    kind = BY_CODE.get(code, VolleyError)
    return kind(
        message,
        code=code,
        status=status,
        retry_after=retry_after,
        origin=origin,
        reason=reason,
        request_id=request_id,
    )


def too_late() -> DeadlineExceededError:
    """Returns the error of a call whose own deadline has passed."""
    return DeadlineExceededError("the deadline passed before the work was done; allow more time")
