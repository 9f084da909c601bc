"""The patch formats: JSON patch (RFC 6902), JSON merge patch (RFC 7386) and strategic merge patch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muster.embedded.apiserver.status import StatusError, bad_request, unsupported_media_type
from muster.embedded.apiserver.verbs.bodies import BodyError, check_nesting, read_json, read_yaml
from muster.embedded.apiserver.verbs.strategic import strategic_merge
from muster.embedded.objects import Obj, copy, encode

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
MAX_OPERATIONS = 10_000
COPIED_BYTES_MAX = 3 << 20
"""Limit for what the copy operations of one patch may add, as in kube-apiserver."""


def json_patch(document: Obj, operations: Any) -> Obj:
    """Apply a JSON patch to a copy of the document.

    Raises:
        StatusError: 400 for a malformed patch, 422 if an operation cannot be applied.
    """
    if not isinstance(operations, list):
        raise bad_request("error decoding patch: json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    if len(operations) > MAX_OPERATIONS:
        raise StatusError(
            413,
            "RequestEntityTooLarge",
            f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}",
        )
    result: Any = copy(document)
    copied = 0
    try:
        for operation in operations:
            result = _apply(result, operation)
            if operation["op"] == "copy":
                copied += len(encode(_read(result, _pointer(operation["from"]))))
                if copied > COPIED_BYTES_MAX:
                    raise ValueError("the copies are too large")
        check_nesting(result)
    except (KeyError, IndexError, ValueError, TypeError, RecursionError):
        raise _unprocessable() from None
    if not isinstance(result, dict):
        raise _unprocessable()
    return result


def _unprocessable() -> StatusError:
    return StatusError(422, "Invalid", "the server rejected our request due to an error in our request", {})


def _apply(document: Any, operation: Obj) -> Any:
    name = operation["op"]
    path = _pointer(operation["path"])
    if name == "test":
        if _read(document, path) != operation.get("value"):
            raise ValueError(f"testing value {operation['path']} failed: test failed")
        return document
    if name == "remove":
        return _remove(document, path)
    if name == "add":
        return _add(document, path, copy(operation["value"]))
    if name == "replace":
        _read(document, path)
        return _replace(document, path, copy(operation["value"]))
    if name == "copy":
        return _add(document, path, copy(_read(document, _pointer(operation["from"]))))
    if name == "move":
        source = _pointer(operation["from"])
        value = _read(document, source)
        return _add(_remove(document, source), path, value)
    raise ValueError(f"Unexpected kind: {name}")


def _pointer(text: str) -> list[str]:
    if text == "":
        return []
    if not isinstance(text, str):
        raise TypeError("a path is a string")
    if not text.startswith("/"):
        raise ValueError(f"path {text} does not start with /")
    return [part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/")]


def _child(container: Any, part: str) -> Any:
    if isinstance(container, list):
        return container[_index(part)]
    if isinstance(container, dict):
        if part not in container:
            raise KeyError(f"missing value at path element {part}")
        return container[part]
    raise TypeError(f"path element {part} is below a value that is not an object or list")


def _index(part: str) -> int:
    index = int(part)
    if index < 0:
        raise IndexError(f"invalid index {part}")
    return index


def _read(document: Any, path: list[str]) -> Any:
    for part in path:
        document = _child(document, part)
    return document


def _remove(document: Any, path: list[str]) -> Any:
    if not path:
        return None
    parent = _read(document, path[:-1])
    _child(parent, path[-1])
    if isinstance(parent, list):
        del parent[_index(path[-1])]
    else:
        del parent[path[-1]]
    return document


def _add(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _read(document, path[:-1])
    if isinstance(parent, list):
        index = len(parent) if path[-1] == "-" else _index(path[-1])
        if index > len(parent):
            raise IndexError(f"index {index} is out of range")
        parent.insert(index, value)
    elif isinstance(parent, dict):
        parent[path[-1]] = value
    else:
        raise TypeError(f"path element {path[-1]} is below a value that is not an object or list")
    return document


def _replace(document: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _read(document, path[:-1])
    parent[_index(path[-1]) if isinstance(parent, list) else path[-1]] = value
    return document


def merge_patch(document: Any, patch: Any) -> Any:
    """Apply a JSON merge patch; null removes a field."""
    if not isinstance(patch, dict):
        return copy(patch)
    result = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def change_for(content_type: str, body: bytes, *, custom: bool) -> Callable[[Obj], Obj]:
    """Return the function that applies a patch request's body.

    Raises:
        StatusError: 400 for a body that is not a patch, 415 for a format this kind does not take.
    """
    media = content_type.partition(";")[0].strip()
    allowed = (
        [JSON_PATCH, MERGE_PATCH, APPLY_PATCH] if custom else [JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH]
    )
    if media not in (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH):
        raise StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
    if media not in allowed:
        raise unsupported_media_type(allowed)
    patch = _decode_yaml(body) if media == APPLY_PATCH else _decode(body)
    if media == JSON_PATCH:
        return lambda obj: json_patch(obj, patch)
    if not isinstance(patch, dict):
        raise bad_request("error decoding patch: a JSON object is wanted")
    if media == MERGE_PATCH or (media == APPLY_PATCH and custom):
        return lambda obj: merge_patch(obj, patch)
    return lambda obj: _strategic(obj, patch)


def _strategic(obj: Obj, patch: Obj) -> Obj:
    """Apply a strategic merge patch. A directive with a value of the wrong type is refused."""
    try:
        merged = strategic_merge(obj, patch)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise bad_request(f"unable to apply the strategic merge patch: {error}") from None
    if not isinstance(merged, dict):
        raise bad_request("unable to apply the strategic merge patch: the result is not an object")
    return merged


def _decode(body: bytes) -> Any:
    try:
        return read_json(body)
    except BodyError as error:
        raise bad_request(f"error decoding patch: {error}") from None


def _decode_yaml(body: bytes) -> Obj:
    try:
        return read_yaml(body)
    except BodyError as error:
        raise bad_request(f"error decoding YAML: {error}") from None


def applied_object(body: bytes) -> Obj:
    """Return the object in the body of a server-side apply.

    Raises:
        StatusError: 400 if the body is not an object.
    """
    return _decode_yaml(body)
