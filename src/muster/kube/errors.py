"""Errors of the API server, and errors in reaching it."""

from __future__ import annotations

from typing import Any

import msgspec

from muster.kube.objects.struct import KubeStruct, decode


class ConfigError(Exception):
    """No usable cluster configuration. The message says what to change."""


class ApiError(Exception):
    """The API server refused. `reason` is the machine-readable Status reason; `details` its details, if any."""

    def __init__(self, status: int, reason: str = "", message: str = "", details: dict[str, Any] | None = None) -> None:
        super().__init__(message or reason or f"HTTP {status}")
        self.status = status
        self.reason = reason
        self.message = message or reason or f"HTTP {status}"
        self.details: dict[str, Any] = details or {}

    @property
    def retry_after_s(self) -> float | None:
        """Returns how long the server asked to wait; None if it did not."""
        value = self.details.get("retryAfterSeconds")
        return float(value) if isinstance(value, int | float) and value >= 0 else None

    @property
    def in_full(self) -> str:
        """The message with its causes; for a refused eviction these name the PodDisruptionBudget."""
        causes = self.details.get("causes")
        reasons = [cause.get("message", "") for cause in causes if isinstance(cause, dict)] if causes else []
        return ": ".join([self.message.rstrip("."), *reasons])


class NotFound(ApiError):
    """404."""


class Conflict(ApiError):
    """409 Conflict: the object changed since it was read, or a precondition failed."""


class AlreadyExists(ApiError):
    """409 AlreadyExists. Not a Conflict: reading again does not help."""


class Forbidden(ApiError):
    """403: authenticated, but not allowed (by RBAC, quota or admission)."""


class Unauthorized(ApiError):
    """401: the credentials are missing, wrong or expired."""


class Invalid(ApiError):
    """400 or 422: the request or object is wrong; repeating it does not help."""


class Gone(ApiError):
    """410: the resource version or continue token is too old; list again."""


class TooManyRequests(ApiError):
    """429: server overload, or an eviction that a PodDisruptionBudget does not allow now."""


class ServerTimeout(ApiError):
    """408, 504 or our own deadline: the server may or may not have acted."""


class Unavailable(ApiError):
    """The API server cannot be reached (status 0) or cannot serve now (502, 503)."""


_BY_STATUS: dict[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    408: ServerTimeout,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
    502: Unavailable,
    503: Unavailable,
    504: ServerTimeout,
}
_BY_REASON: dict[str, type[ApiError]] = {
    "AlreadyExists": AlreadyExists,
    "Expired": Gone,
    "Gone": Gone,
    "ServerTimeout": ServerTimeout,  # 500 with a hint to retry
    "Timeout": ServerTimeout,
}


class Status(KubeStruct):
    """metav1.Status."""

    status: str = ""
    message: str = ""
    reason: str = ""
    details: dict[str, Any] | None = None
    code: int = 0


def error_from(status: int, body: bytes, *, retry_after_s: float | None = None) -> ApiError:
    """Convert an HTTP answer to an error. If the body is not a Status object, the message is its shortened text."""
    try:
        parsed = decode(body, Status)
    except msgspec.DecodeError:
        parsed = Status(message=body[:512].decode("utf-8", "replace").strip())
    return error_from_status(parsed, status, retry_after_s=retry_after_s)


def error_from_status(parsed: Status, status: int = 0, *, retry_after_s: float | None = None) -> ApiError:
    """Convert a Status to an error. If `status` is 0, the Status's own code is used."""
    code = status or parsed.code
    details = dict(parsed.details or {})
    if retry_after_s is not None:
        details.setdefault("retryAfterSeconds", retry_after_s)
    kind = _BY_REASON.get(parsed.reason) or _BY_STATUS.get(code, ApiError)
    return kind(code, parsed.reason, parsed.message, details)


class BadConfig(ValueError):
    """The ConfigMap is not valid. The message has one line for each problem, with what to change."""
