"""Functions for API objects as JSON dictionaries: encoding, copying, reading fields."""

from __future__ import annotations

import datetime
from typing import Any, Protocol

import msgspec

Obj = dict[str, Any]

encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Clock(Protocol):
    """The source of time: the wall clock, or a simulation."""

    def now(self) -> float:
        """Return seconds since the epoch."""
        ...


def decode(data: bytes) -> Obj:
    """Decode one JSON object; a fresh dictionary that the caller may change."""
    value = _decode(data)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def metadata(obj: Obj) -> Obj:
    """Return the object's metadata. Missing metadata is created."""
    value = obj.get("metadata")
    if not isinstance(value, dict):
        value = obj["metadata"] = {}
    return value


def section(obj: Obj, name: str) -> Obj:
    """Return `obj[name]` if it is a dictionary, else a new empty one."""
    value = obj.get(name)
    return value if isinstance(value, dict) else {}


def items(obj: Obj, name: str) -> list[Any]:
    """Return `obj[name]` if it is a list, else a new empty one."""
    value = obj.get(name)
    return value if isinstance(value, list) else []


def copy(value: Any) -> Any:
    """Return a deep copy of a JSON value."""
    if isinstance(value, dict):
        return {key: copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copy(item) for item in value]
    return value


def timestamp(seconds: float) -> str:
    """Format a time as Kubernetes' metav1.Time: RFC 3339, whole seconds, UTC."""
    return datetime.datetime.fromtimestamp(int(seconds), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(seconds: float) -> str:
    """Format a time as Kubernetes' metav1.MicroTime: RFC 3339 with six fractional digits, UTC."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: Any) -> float | None:
    """Return the seconds since the epoch of an RFC 3339 time; None for another text."""
    if not isinstance(text, str) or not text:
        return None
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
