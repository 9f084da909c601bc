"""Errors as kube-apiserver reports them: `metav1.Status` with its codes, reasons and wording.

Source: k8s.io/apimachinery `pkg/api/errors` and `pkg/util/validation/field`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from muster.embedded.objects import Obj, encode


class StatusError(Exception):
    """A failed request, with its Status."""

    def __init__(self, code: int, reason: str, message: str, details: Obj | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    def status(self) -> Obj:
        """Return the Status object."""
        body: Obj = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details
        body["code"] = self.code
        return body


@dataclasses.dataclass(frozen=True)
class FieldError:
    """One field that is wrong."""

    reason: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def shown(value: Any) -> str:
    """Write a value as Go does in validation messages."""
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    return encode(value).decode()


def required(field: str, detail: str = "") -> FieldError:
    """A field is missing."""
    return FieldError("FieldValueRequired", field, "Required value" + (f": {detail}" if detail else ""))


def invalid(field: str, value: Any, detail: str) -> FieldError:
    """A field has a value that is not valid."""
    return FieldError("FieldValueInvalid", field, f"Invalid value: {shown(value)}: {detail}")


def type_invalid(field: str, value: Any, detail: str) -> FieldError:
    """A field holds a value of the wrong type."""
    return FieldError("FieldValueTypeInvalid", field, f"Invalid value: {shown(value)}: {detail}")


def unsupported(field: str, value: Any, allowed: list[Any]) -> FieldError:
    """A field has a value that is not in the list of allowed values."""
    names = ", ".join(shown(item) for item in allowed)
    return FieldError("FieldValueNotSupported", field, f"Unsupported value: {shown(value)}: supported values: {names}")


def forbidden_field(field: str, detail: str) -> FieldError:
    """A field may not be set or changed."""
    return FieldError("FieldValueForbidden", field, f"Forbidden: {detail}")


def duplicate(field: str, value: Any) -> FieldError:
    """A list has a duplicate entry."""
    return FieldError("FieldValueDuplicate", field, f"Duplicate value: {shown(value)}")


def not_found_field(field: str, value: Any) -> FieldError:
    """A field names an object that does not exist."""
    return FieldError("FieldValueNotFound", field, f"Not found: {shown(value)}")


def _details(name: str, group: str, kind: str, **more: Any) -> Obj:
    details: Obj = {}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    if kind:
        details["kind"] = kind
    details.update(more)
    return details


def qualified(plural: str, group: str) -> str:
    """Return the resource as messages name it: `pods`, `leases.coordination.k8s.io`."""
    return f"{plural}.{group}" if group else plural


def bad_request(message: str) -> StatusError:
    """400."""
    return StatusError(400, "BadRequest", message)


def unauthorized() -> StatusError:
    """401."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def forbidden(plural: str, group: str, name: str, why: str, causes: list[Obj] | None = None) -> StatusError:
    """403."""
    details = _details(name, group, plural, **({"causes": causes} if causes else {}))
    return StatusError(403, "Forbidden", f'{qualified(plural, group)} "{name}" is forbidden: {why}', details)


def not_found(plural: str, group: str, name: str) -> StatusError:
    """404 for an object."""
    message = f'{qualified(plural, group)} "{name}" not found'
    return StatusError(404, "NotFound", message, _details(name, group, plural))


def no_such_resource() -> StatusError:
    """404 for a resource that does not exist."""
    return StatusError(404, "NotFound", "the server could not find the requested resource", {})


def method_not_allowed() -> StatusError:
    """405."""
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message, {})


def already_exists(plural: str, group: str, name: str) -> StatusError:
    """409 on create."""
    message = f'{qualified(plural, group)} "{name}" already exists'
    return StatusError(409, "AlreadyExists", message, _details(name, group, plural))


MODIFIED_MEANWHILE = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(plural: str, group: str, name: str, why: str = MODIFIED_MEANWHILE) -> StatusError:
    """409 on a stale write."""
    message = f'Operation cannot be fulfilled on {qualified(plural, group)} "{name}": {why}'
    return StatusError(409, "Conflict", message, _details(name, group, plural))


def stale(resource: str, group: str, name: str, key: str, uid: str, actual: str) -> StatusError:
    """409 if the UID in an update belongs to another object of the same name; with the message of the storage layer."""
    why = (
        f"StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: "
        f"Precondition failed: UID in precondition: {uid}, UID in object meta: {actual}"
    )
    return conflict(resource, group, name, why)


def expired(message: str) -> StatusError:
    """410: the requested version is no longer available."""
    return StatusError(410, "Expired", message)


def invalid_object(kind: str, group: str, name: str, errors: list[FieldError]) -> StatusError:
    """422: the object is not valid."""
    texts = list(dict.fromkeys(str(error) for error in errors))
    joined = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    qualified_kind = f"{kind}.{group}" if group else kind
    causes = [{"reason": error.reason, "message": error.message, "field": error.field} for error in errors]
    return StatusError(
        422, "Invalid", f'{qualified_kind} "{name}" is invalid: {joined}', _details(name, group, kind, causes=causes)
    )


def unsupported_media_type(allowed: list[str]) -> StatusError:
    """415."""
    return StatusError(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include: " + ", ".join(allowed),
    )


def too_many_requests(message: str, causes: list[Obj] | None = None, retry_after_s: int = 0) -> StatusError:
    """429, as the eviction subresource answers if a budget forbids the eviction."""
    details: Obj = {"causes": causes} if causes else {}
    if retry_after_s:
        details["retryAfterSeconds"] = retry_after_s
    return StatusError(429, "TooManyRequests", message, details or None)


def internal(message: str) -> StatusError:
    """500."""
    return StatusError(500, "InternalError", f"Internal error occurred: {message}", {"causes": [{"message": message}]})


def version_too_large(asked: int, current: int) -> StatusError:
    """504: the requested version is newer than the server's."""
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return StatusError(504, "Timeout", message, {"causes": [cause], "retryAfterSeconds": 1})


def success(plural: str, group: str, name: str, uid: str) -> Obj:
    """Return the Status of a successful delete."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": _details(name, group, plural, **({"uid": uid} if uid else {})),
    }
