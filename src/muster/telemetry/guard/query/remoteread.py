"""Decodes the request of a remote read: snappy around protobuf.

Source: prompb/remote.proto and prompb/types.proto of Prometheus, messages ReadRequest, Query, LabelMatcher and
ReadHints. The times of a query choose the blocks that Prometheus opens. The times of its hints choose the samples that
it reads of them, so a request for one second can read whole blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import cramjam

from muster.kube.protobuf import BYTES, VARINT, fields, varint
from muster.telemetry.guard.query.errors import BadRequest
from muster.telemetry.promql.matcher import Matcher, Op
from muster.telemetry.promql.selector import Selector

MAX_DECODED_BYTES: Final = 4 << 20
MAX_FIELDS: Final = 10_000
"""Fields of all messages in one request. A field can be two bytes, and takes 10 microseconds to read."""
_OPS: Final[tuple[Op, ...]] = ("=", "!=", "=~", "!~")


def decode_read_request(body: bytes) -> tuple[Selector, ...]:
    """Return one selector per query: fixed at its end, with its time as range.

    Raises:
        BadRequest: the bytes are not such a request, or have more bytes or fields than are accepted.
    """
    try:
        length, _ = varint(body, 0)
        if length > MAX_DECODED_BYTES:
            raise BadRequest(413, f"the request has {length} bytes; at most {MAX_DECODED_BYTES} are accepted")
        return _Reader().queries(bytes(cramjam.snappy.decompress_raw(body)))
    except (cramjam.DecompressionError, IndexError, ValueError) as error:
        if isinstance(error, BadRequest):
            raise
        raise BadRequest(400, "the body is not a remote read request (snappy, protobuf)") from None


class _Reader:
    """Reads the messages of one request."""

    def __init__(self) -> None:
        self._fields_left = MAX_FIELDS

    def queries(self, data: bytes) -> tuple[Selector, ...]:
        """Return the queries of a ReadRequest. Raises WireError, BadRequest."""
        return tuple(
            self._query(value) for number, value in self._fields(data) if number == 1 and isinstance(value, bytes)
        )

    def _query(self, data: bytes) -> Selector:
        start_ms = end_ms = 0
        hints = bytearray()
        matchers: list[Matcher] = []
        for number, value in self._fields(data):
            if number == 1 and isinstance(value, int):
                start_ms = _signed(value)
            elif number == 2 and isinstance(value, int):
                end_ms = _signed(value)
            elif number == 3 and isinstance(value, bytes):
                matchers.append(self._matcher(value))
            elif number == 4 and isinstance(value, bytes):
                hints += value  # protobuf merges the parts of a message that is there twice
        hinted_ms = self._hinted_ms(bytes(hints))
        oldest_ms, newest_ms = min([start_ms, *hinted_ms]), max([end_ms, *hinted_ms])
        return Selector((tuple(matchers),), max(newest_ms - oldest_ms, 0) / 1000, at=newest_ms / 1000)

    def _hinted_ms(self, data: bytes) -> tuple[int, ...]:
        """Return start and end of hints, 0 where one is absent; none if they choose no time."""
        start_ms = end_ms = 0
        for number, value in self._fields(data):
            if number == 3 and isinstance(value, int):
                start_ms = _signed(value)
            elif number == 4 and isinstance(value, int):
                end_ms = _signed(value)
        return (start_ms, end_ms) if start_ms < end_ms else ()

    def _matcher(self, data: bytes) -> Matcher:
        kind, name, value = 0, "", ""
        for number, field in self._fields(data):
            if number == 1 and isinstance(field, int):
                kind = field
            elif number == 2 and isinstance(field, bytes):
                name = field.decode()
            elif number == 3 and isinstance(field, bytes):
                value = field.decode()
        if kind >= len(_OPS):
            raise ValueError(f"type {kind} of a matcher")
        return Matcher(name, _OPS[kind], value)

    def _fields(self, data: bytes) -> Iterator[tuple[int, int | bytes]]:
        """Yield number and value of each field that is a number or has a length. Raises WireError, BadRequest."""
        for key, _, start, stop in fields(data, 0, len(data)):
            self._fields_left -= 1
            if self._fields_left < 0:
                what = f"the request has more than {MAX_FIELDS} fields; send fewer queries or matchers"
                raise BadRequest(413, what)
            if key & 7 == VARINT:
                yield key >> 3, varint(data, start)[0]
            elif key & 7 == BYTES:
                yield key >> 3, data[start:stop]


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
