"""Cuts the protobuf of a watch into frames."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from muster.kube.protobuf import WireError, fields, tag
from muster.readcache.wire.format import BOOKMARK, ERROR, FRAME_LIMIT_BYTES, INITIAL_END, Frame, parse_version
from muster.readcache.wire.protoenvelope import Envelope, opened
from muster.readcache.wire.protoscan import Entry, Wanted, read
from muster.readcache.wire.protostatus import decode_status

LENGTH: Final = struct.Struct(">I")
_TYPE: Final = tag(1)
_OBJECT: Final = tag(2)
_RAW: Final = tag(1)
_BOOKMARK: Final[Wanted] = {tag(1): {tag(6): "version", tag(12): Entry("annotations")}}


class ProtobufDecoder:
    """FrameDecoder for protobuf: a length of four bytes, big-endian, before each WatchEvent."""

    def __init__(
        self,
        envelope: Envelope,
        on_bookmark: Callable[[bytes], None] = lambda data: None,
        limit_bytes: int = FRAME_LIMIT_BYTES,
    ) -> None:
        """`on_bookmark` is called with the object of each BOOKMARK."""
        self._envelope, self._on_bookmark, self._limit_bytes = envelope, on_bookmark, limit_bytes
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Frame]:
        """Returns the frames that are complete now. Raises WireError."""
        data = self._rest + chunk if self._rest else chunk
        frames: list[Frame] = []
        start = 0
        while len(data) - start >= LENGTH.size:
            (length,) = LENGTH.unpack_from(data, start)
            if length > self._limit_bytes:
                raise WireError(f"a frame of {length} bytes is larger than {self._limit_bytes} bytes")
            first = start + LENGTH.size
            if len(data) - first < length:
                break
            start = first + length
            frames.append(self._frame(data[first:start]))
        self._rest = data[start:]
        return frames

    def _frame(self, event: bytes) -> Frame:
        type_ = enveloped = b""
        for key, _, start, stop in fields(event, 0, len(event)):
            if key == _TYPE:
                type_ = event[start:stop]
            elif key == _OBJECT:
                for inner, _, first, last in fields(event, start, stop):
                    if inner == _RAW:
                        enveloped = event[first:last]
        name = type_.decode("ascii", "replace")
        if name == ERROR:
            _, start, stop = opened(enveloped)
            return Frame(ERROR, decode_status(enveloped[start:stop]))
        start, stop = self._envelope.inside(enveloped)
        if name != BOOKMARK:
            if not name:
                raise WireError("an event has no type")
            return Frame(name, enveloped[start:stop])
        found: dict[str, Any] = {}
        read(enveloped, start, stop, _BOOKMARK, found)
        self._on_bookmark(enveloped[start:stop])
        end = found.get("annotations", {}).get(INITIAL_END) == "true"
        return Frame(BOOKMARK, b"", parse_version(found.get("version", "")), end)
