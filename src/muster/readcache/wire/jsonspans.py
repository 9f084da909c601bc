"""Finds members of a JSON object in its bytes, so that a value can be replaced without encoding the object again."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from muster.kube.protobuf import WireError
from muster.readcache.kinds import CachedKind

_START: Final = re.compile(rb"\s*\{\s*")
_KEY: Final = re.compile(rb'\s*("(?:[^"\\]|\\.)*")\s*:\s*')
_SEPARATOR: Final = re.compile(rb"\s*([,}])")
_TWICE: Final = "an object has a key twice"
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_text: Final = msgspec.json.Decoder(str).decode


def members(data: bytes) -> list[tuple[str, int, int, int]]:
    """Returns (key, where its text starts, where its value starts, where its value ends) in the order of the bytes.

    Raises:
        WireError: not one JSON object, or a key lies in it twice.
    """
    try:
        found = _members(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WireError(f"not a JSON object: {error}") from None
    position = _matched(_START, data, 0).end()
    separator = b","
    spans = []
    for key, raw in found.items():
        match = _matched(_KEY, data, position)
        start, end = match.end(), match.end() + len(memoryview(raw))
        if _text(match[1]) != key or data[start:end] != memoryview(raw):
            raise WireError(_TWICE)
        spans.append((key, match.start(1), start, end))
        last = _matched(_SEPARATOR, data, end)
        position, separator = last.end(), last[1]
    if found and separator != b"}":
        raise WireError(_TWICE)
    return spans


def _matched(pattern: re.Pattern[bytes], data: bytes, position: int) -> re.Match[bytes]:
    match = pattern.match(data, position)
    if match is None:
        raise WireError(_TWICE)
    return match


def span(data: bytes, *path: str) -> tuple[int, int] | None:
    """Returns where the value at a path starts and ends, None if there is none. Raises WireError."""
    start, end = 0, len(data)
    for name in path:
        inner = data[start:end]
        found = next(((first, last) for key, _, first, last in members(inner) if key == name), None)
        if found is None:
            return None
        start, end = start + found[0], start + found[1]
    return start, end


def without(data: bytes, names: tuple[str, ...]) -> bytes:
    """Returns an object without some members, and without whitespace between the others. Raises WireError."""
    kept = [data[key_start:end] for key, key_start, _, end in members(data) if key not in names]
    return b"{" + b",".join(kept) + b"}"


class TypeMeta:
    """apiVersion and kind, as they stand at the start of an object's JSON.

    Built-in kinds have them in a get and in a watch, not in a list; custom resources have them everywhere.
    """

    def __init__(self, kind: CachedKind) -> None:
        resource = kind.resource
        self._custom, self._kind, self._api_version = kind.custom, resource.kind, resource.api_version
        members = [f'"kind":"{resource.kind}"', f'"apiVersion":"{resource.api_version}"']
        if kind.custom:
            members.reverse()  # in the order of the alphabet, as all their members
        self.start = f"{{{','.join(members)},".encode()

    def added(self, data: bytes) -> bytes:
        """Returns what a get or a watch has for an object of a list."""
        return data if self._custom else self.start + data[1:]

    def removed(self, data: bytes) -> bytes:
        """Returns what a list has for an object of a get or a watch. Raises WireError."""
        if data.startswith(self.start):
            return data if self._custom else b"{" + data[len(self.start) :]
        found = {key: data[start:end] for key, _, start, end in members(data) if key in ("kind", "apiVersion")}
        expected = {"kind": f'"{self._kind}"'.encode(), "apiVersion": f'"{self._api_version}"'.encode()}
        if not self._custom and not found:
            return data
        if found != expected:
            raise WireError(f"an object is not a {self._kind} of {self._api_version}")
        return data if self._custom else without(data, tuple(expected))
