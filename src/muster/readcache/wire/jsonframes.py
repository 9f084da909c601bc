"""Cuts the JSON of a watch into frames."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec

from muster.kube.protobuf import WireError
from muster.readcache.wire.format import BOOKMARK, ERROR, FRAME_LIMIT_BYTES, INITIAL_END, Frame, parse_version
from muster.readcache.wire.jsonspans import TypeMeta

_MAY_END: Final = b"} \t\r\n"
_NOT_SPACE: Final = re.compile(rb"[^ \t\r\n]")
# where a JSON value ends depends on its brackets outside of strings; a quote alone starts a string that is cut
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["{}\[\]]', re.DOTALL)


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _BookmarkMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _Bookmark(msgspec.Struct):
    metadata: _BookmarkMeta


_event: Final = msgspec.json.Decoder(_Event).decode
_bookmark: Final = msgspec.json.Decoder(_Bookmark).decode


class JSONDecoder:
    """FrameDecoder for JSON: one value after the other, with any whitespace between and in them.

    kube-apiserver ends each frame with a newline and has none inside, so a line is tried as a frame first. Frames that
    are written otherwise are cut by their brackets. If no newline follows, this is tried where a chunk ends like a
    frame.
    """

    def __init__(
        self,
        type_meta: TypeMeta,
        on_bookmark: Callable[[bytes], None] = lambda data: None,
        limit_bytes: int = FRAME_LIMIT_BYTES,
    ) -> None:
        """`on_bookmark` is called with the object of each BOOKMARK."""
        self._type_meta, self._on_bookmark, self._limit_bytes = type_meta, on_bookmark, limit_bytes
        self._rest = b""
        self._searched = 0  # the rest has no newline before this place
        self._scanned = self._depth = 0  # brackets that are open at this place of the rest

    def feed(self, chunk: bytes) -> list[Frame]:
        """Returns the frames that are complete now. Raises WireError."""
        data = self._rest + chunk if self._rest else chunk
        frames: list[Frame] = []
        start = 0
        while (end := self._next(data, start, frames)) is not None:
            self._limit(end - start)
            start = end
        self._limit(len(data) - start)
        self._rest = data[start:]
        self._searched -= start
        self._scanned -= start
        return frames

    def _limit(self, size_bytes: int) -> None:
        if size_bytes > self._limit_bytes:
            raise WireError(f"a frame is larger than {self._limit_bytes} bytes")

    def _next(self, data: bytes, start: int, frames: list[Frame]) -> int | None:
        """Adds the next frame and returns where it ends, None if it is not complete."""
        first = _NOT_SPACE.search(data, start)
        if first is None:
            return len(data) if start < len(data) else None
        if first[0] != b"{":
            raise WireError(f"a frame starts with {data[first.start() : first.start() + 20]!r}")
        if not self._depth:
            newline = data.find(b"\n", max(self._searched, first.start()))
            if newline >= 0:
                event = _whole(data[start:newline])
                if event is not None:
                    frames.append(self._frame(event))
                    return newline + 1
            else:
                self._searched = len(data)
                if data[-1] not in _MAY_END:
                    return None
        end = self._end_by_brackets(data, start)
        if end is not None:
            frames.append(self._frame(_decoded(data[start:end])))
        return end

    def _end_by_brackets(self, data: bytes, start: int) -> int | None:
        position, depth = max(self._scanned, start), self._depth
        for token in _TOKEN.finditer(data, position):
            position = token.end()
            if token[0] in (b"{", b"["):
                depth += 1
            elif token[0] in (b"}", b"]"):
                depth -= 1
                if depth <= 0:
                    self._depth = 0
                    return position
            elif token[0] == b'"':
                position = token.start()
                break
        self._scanned, self._depth = position, depth
        return None

    def _frame(self, event: _Event) -> Frame:
        data = bytes(memoryview(event.object))
        if event.type == ERROR:
            return Frame(ERROR, data)
        if event.type != BOOKMARK:
            return Frame(event.type, self._type_meta.removed(data))
        try:
            meta = _bookmark(data).metadata
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise WireError(f"not a bookmark: {error}") from None
        self._on_bookmark(data)
        end = (meta.annotations or {}).get(INITIAL_END) == "true"
        return Frame(BOOKMARK, b"", parse_version(meta.resource_version), end)


def _whole(text: bytes) -> _Event | None:
    try:
        return _event(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _decoded(text: bytes) -> _Event:
    try:
        return _event(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WireError(f"not a frame of a watch: {error}") from None
