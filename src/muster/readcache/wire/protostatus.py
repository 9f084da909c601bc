"""metav1.Status between JSON and protobuf. Field numbers: k8s.io/apimachinery pkg/apis/meta/v1/generated.proto."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from muster.kube.protobuf import VARINT, WireError, fields, tag, varint
from muster.readcache.wire.protoscan import numbered, sized


class _Cause(msgspec.Struct, omit_defaults=True):
    reason: str = ""
    message: str = ""
    field: str = ""


class _Details(msgspec.Struct, omit_defaults=True, rename="camel"):
    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: list[_Cause] = []
    retry_after_seconds: int = 0


class _ListMeta(msgspec.Struct, omit_defaults=True, rename={"continue_token": "continue"}):
    selfLink: str = ""
    resourceVersion: str = ""
    continue_token: str = ""


class _Status(msgspec.Struct, omit_defaults=True, rename="camel"):
    kind: str = ""
    api_version: str = ""
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)
    status: str = ""
    message: str = ""
    reason: str = ""
    details: _Details | None = None
    code: int = 0


_decode: Final = msgspec.json.Decoder(_Status).decode
_STATUS: Final = {2: "status", 3: "message", 4: "reason"}
_DETAILS: Final = {1: "name", 2: "group", 3: "kind", 6: "uid"}
_CAUSE: Final = {1: "reason", 2: "message", 3: "field"}
_LIST_META: Final = {1: "selfLink", 2: "resourceVersion", 3: "continue_token"}


def encode_status(status: bytes) -> bytes:
    """Returns the protobuf of a Status in JSON. Raises WireError."""
    try:
        found = _decode(status)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WireError(f"not the JSON of a Status: {error}") from None
    written = sized(1, _texts(found.metadata, _LIST_META)) + _texts(found, _STATUS)
    details = found.details
    if details is not None:
        causes = b"".join(sized(4, _texts(cause, _CAUSE)) for cause in details.causes)
        texts = _texts(details, {key: _DETAILS[key] for key in (1, 2, 3)})
        texts += causes + numbered(5, details.retry_after_seconds) + sized(6, details.uid.encode())
        written += sized(5, texts)
    return written + numbered(6, found.code)


def _texts(holder: Any, names: dict[int, str]) -> bytes:
    return b"".join(sized(number, getattr(holder, name).encode()) for number, name in names.items())


def decode_status(data: bytes) -> bytes:
    """Returns the JSON of a Status in protobuf. Raises WireError."""
    status = _Status("Status", "v1")
    _fill(status, _STATUS, data)
    for key, _, start, stop in fields(data, 0, len(data)):
        if key == tag(1):
            _fill(status.metadata, _LIST_META, data[start:stop])
        elif key == tag(5):
            status.details = _details(data[start:stop])
        elif key == tag(6, VARINT):
            status.code = _number(data, start)
    return msgspec.json.encode(status)


def _details(data: bytes) -> _Details:
    details = _Details()
    _fill(details, _DETAILS, data)
    for key, _, start, stop in fields(data, 0, len(data)):
        if key == tag(4):
            cause = _Cause()
            _fill(cause, _CAUSE, data[start:stop])
            details.causes.append(cause)
        elif key == tag(5, VARINT):
            details.retry_after_seconds = _number(data, start)
    return details


def _fill(holder: Any, names: dict[int, str], data: bytes) -> None:
    for key, _, start, stop in fields(data, 0, len(data)):
        name = names.get(key >> 3)
        if name and key == tag(key >> 3) and stop > start:
            setattr(holder, name, data[start:stop].decode("utf-8", "replace"))


def _number(data: bytes, start: int) -> int:
    value = varint(data, start)[0]
    return value - (1 << 64) if value >= 1 << 63 else value
