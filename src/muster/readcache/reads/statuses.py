"""Errors in kube-apiserver's words.

Sources: k8s.io/apimachinery pkg/api/errors and pkg/apis/meta/internalversion/validation; k8s.io/apiserver pkg/storage.
"""

from __future__ import annotations

from typing import Final

import msgspec

from muster.kube.objects.meta import Resource
from muster.readcache.request import Refusal
from muster.readcache.wire.protoenvelope import Envelope
from muster.readcache.wire.protostatus import encode_status

RETRY_S: Final = 1
_STATUS: Final = Envelope("v1", "Status")


def status_json(refusal: Refusal) -> bytes:
    """Returns the metav1.Status of a refusal as JSON, its members in kube-apiserver's order."""
    details = dict(refusal.details)
    if refusal.retry_after_s is not None:
        details["retryAfterSeconds"] = refusal.retry_after_s
    body: dict[str, object] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": refusal.message,
    }
    if refusal.reason:
        body["reason"] = refusal.reason
    if details:
        body["details"] = details
    body["code"] = refusal.code
    return msgspec.json.encode(body)


def status_protobuf(refusal: Refusal) -> bytes:
    """Returns the body of an error in protobuf, also about a kind that has none itself."""
    return _STATUS.around(encode_status(status_json(refusal)))


def bad_request(message: str) -> Refusal:
    """400."""
    return Refusal(400, "BadRequest", message)


def unreadable_version(text: str) -> Refusal:
    """500 without a reason, as kube-apiserver answers a get or watch from a resourceVersion that is not a number."""
    return Refusal(500, "", text)


def not_found(resource: Resource, name: str) -> Refusal:
    """404 for an object."""
    qualified = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
    details = {"name": name, "group": resource.group, "kind": resource.plural}
    return Refusal(
        404,
        "NotFound",
        f'{qualified} "{name}" not found',
        details={key: value for key, value in details.items() if value},
    )


def expired(message: str) -> Refusal:
    """410."""
    return Refusal(410, "Expired", message)


def version_too_large(wanted: int, current: int) -> Refusal:
    """504: the requested version is newer than the store after the wait."""
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return Refusal(
        504,
        "Timeout",
        f"Timeout: Too large resource version: {wanted}, current: {current}",
        retry_after_s=RETRY_S,
        details={"causes": [cause]},
    )


def not_fresh(message: str) -> Refusal:
    """503: the cache cannot prove that the answer would be fresh enough."""
    return Refusal(503, "ServiceUnavailable", message, retry_after_s=RETRY_S)


def initializing() -> Refusal:
    """429, as kube-apiserver answers while a watch cache has no state yet."""
    return Refusal(429, "TooManyRequests", "storage is (re)initializing", retry_after_s=RETRY_S)


def invalid_options(problems: list[tuple[str, str, str]]) -> Refusal:
    """422 for list options. `problems`: (reason of the cause, field, message)."""
    texts = list(dict.fromkeys(f"{name}: {message}" for _, name, message in problems))
    joined = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    causes = [{"reason": reason, "message": message, "field": name} for reason, name, message in problems]
    return Refusal(
        422,
        "Invalid",
        f'ListOptions.meta.k8s.io "" is invalid: {joined}',
        details={"group": "meta.k8s.io", "kind": "ListOptions", "causes": causes},
    )
