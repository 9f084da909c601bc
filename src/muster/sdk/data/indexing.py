"""Builds the index of a data set once, and stores it beside the data.

Several ranks and jobs may build at the same time. Work is divided into units of a few shards. The name of a unit's
object contains a digest of its shards' versions, so a later build uses the units that an earlier one finished. All
objects are written create-only: the first complete index is the one that counts.
"""

from __future__ import annotations

import io
import json
import logging
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Iterator, NamedTuple

from muster.sdk.data import index as indexes
from muster.sdk.data.broken import BrokenShard
from muster.sdk.data.errors import AlreadyExists, Forbidden, NotFound, StoreError
from muster.sdk.data.formats.base import Format
from muster.sdk.data.formats.choose import choose
from muster.sdk.data.index import FOLDER, NAME, Index, Shard, SpansAt
from muster.sdk.data.spans import Spans
from muster.sdk.data.store import Store

UNIT_SHARDS = 64
UNIT_BYTES = 4 << 30
_UNIT_HEAD = 16 << 10
_CHUNK = 8 << 20
_THREADS = 4
_FIRST_RANK_WAIT_S = 20.0

_log = logging.getLogger(__name__)


class Unit(NamedTuple):
    """What the index holds about a few shards. Their spans follow it in the unit's object.

    Attributes:
        counts: number of samples of each shard.
        lengths: bytes of each shard's spans.
        digests: `Spans.digest` of each shard.
        broken: reasons by key.
    """

    counts: list[int]
    lengths: list[int]
    digests: list[str]
    broken: dict[str, str]

    def encode(self) -> bytes:
        """Length and CRC-32 in hexadecimal, then JSON. The spans follow."""
        text = json.dumps(self, separators=(",", ":")).encode()
        return b"%08x%08x" % (len(text), zlib.crc32(text)) + text


def read_unit(place: Store, name: str) -> tuple[Unit, int]:
    """Read a unit without its spans, and return the offset of the first one. Raises ValueError if it is damaged."""
    data = place.read(name, 0, _UNIT_HEAD)
    length, checksum = int(data[:8], 16), int(data[8:16], 16)
    if 16 + length > len(data):
        data += place.read(name, len(data), 16 + length - len(data))
    text = data[16 : 16 + length]
    if zlib.crc32(text) != checksum:
        raise ValueError("wrong checksum")
    return Unit(*json.loads(text)), 16 + length


def list_shards(store: Store, wanted: str | Format) -> tuple[Format, list[Shard]]:
    """List the shards below the store's URL, without hidden objects. Raises ValueError if there is no shard."""
    found = [
        Shard(info.key, info.size_bytes, info.etag)
        for info in store.list()
        if not info.key.endswith("/") and not any(part.startswith(".") for part in info.key.split("/"))
    ]
    if not found:
        raise ValueError(f"no objects below {store.url}: check the URL of the data")
    format = choose(wanted, [shard.key for shard in found])
    shards = [shard for shard in found if format.accepts(shard.key)]
    if not shards:
        raise ValueError(
            f"no shards of format {format.name!r} among the {len(found)} objects below {store.url}: check the format "
            "and the URL of the data"
        )
    return format, shards


class Builder:
    """Builds an index.

    Args:
        data: the data set.
        place: where the index is stored.
        wanted: the format, or "auto".
        rank: of this process. Ranks begin with different units, so that together they build faster.
        world_size: number of processes.
        skip: leave broken shards out, instead of failing.
    """

    def __init__(self, data: Store, place: Store, wanted: str | Format, rank: int, world_size: int, skip: bool) -> None:
        self._data = data
        self._place = place
        self._wanted = wanted
        self._rank = rank
        self._world_size = world_size
        self._skip = skip

    def build(self) -> Index:
        """Build and store the index, or read the one that another process stored first.

        Raises:
            BrokenShard: a shard cannot be indexed, and broken shards are not skipped.
            StoreError: the store failed.
        """
        if self._rank:
            early = self._await_first_rank()
            if early:
                return early
        format, shards = list_shards(self._data, self._wanted)
        if not format.scans:
            return self._publish(Index(format.name, shards, [1] * len(shards)))
        units = list(_divide(shards))
        names = [_unit_name(format, unit) for unit in units]
        done: dict[int, tuple[Unit, int]] = {}
        first = self._rank * len(units) // self._world_size
        with ThreadPoolExecutor(_THREADS, "muster-index") as threads:
            for number in [*range(first, len(units)), *range(first)]:
                done[number] = self._unit(format, names[number], units[number], threads)
        return self._publish(_assemble(format, shards, names, [done[number] for number in range(len(units))]))

    def _await_first_rank(self) -> Index | None:
        """Wait for a short index, or return None after a while: then this process helps to build it."""
        deadline = time.monotonic() + _FIRST_RANK_WAIT_S
        delay = 0.1
        while time.monotonic() < deadline:
            stored = load(self._place)
            if stored:
                return stored
            if any(True for _ in self._place.list(FOLDER + "unit-")):
                return None  # units appear: this index takes time, and there is work for everyone
            time.sleep(delay)
            delay = min(5.0, 1.5 * delay)
        return None

    def _unit(self, format: Format, name: str, shards: list[Shard], threads: ThreadPoolExecutor) -> tuple[Unit, int]:
        try:
            return read_unit(self._place, name)
        except NotFound:
            pass
        except ValueError:
            _log.warning("%s/%s is damaged, and is built again", self._place.url, name)
            self._place.delete(name)
        results = list(threads.map(lambda shard: self._scan(format, shard), shards))
        broken = {shard.key: result for shard, result in zip(shards, results) if isinstance(result, str)}
        spans = [result if isinstance(result, Spans) else Spans([], [], []) for result in results]
        blobs = [each.encode() for each in spans]
        counts, lengths = [len(each.starts) for each in spans], [len(blob) for blob in blobs]
        unit = Unit(counts, lengths, [each.digest() for each in spans], broken)
        head = unit.encode()
        try:
            self._place.put(name, head + b"".join(blobs), create_only=True)
        except AlreadyExists:
            return read_unit(self._place, name)
        return unit, len(head)

    def _scan(self, format: Format, shard: Shard) -> Spans | str:
        """The spans of a shard, or why it is broken."""
        try:
            return scan(self._data, format, shard)
        except (BrokenShard, Forbidden, NotFound) as error:
            if not self._skip and isinstance(error, BrokenShard):
                raise error.with_fix() from error
            if not self._skip:
                raise
            _log.warning("broken shard is left out of the index: %s", error)
            return str(error)

    def _publish(self, index: Index) -> Index:
        try:
            self._place.put(NAME, index.encode(), create_only=True)
        except AlreadyExists:
            stored = load(self._place)
            if stored:
                return stored
        return index


def _assemble(format: Format, shards: list[Shard], names: list[str], units: list[tuple[Unit, int]]) -> Index:
    counts: list[int] = []
    spans: list[SpansAt] = []
    broken: dict[str, str] = {}
    for name, (unit, start) in zip(names, units):
        counts += unit.counts
        broken.update(unit.broken)
        for length, digest in zip(unit.lengths, unit.digests):
            spans.append(SpansAt(name, start, length, digest))
            start += length
    return Index(format.name, shards, counts, spans, broken)


def load(place: Store) -> Index | None:
    """Read the stored index; None if there is none. Raises StoreError if it is damaged."""
    try:
        data = place.read(NAME)
    except NotFound:
        return None
    try:
        return indexes.decode(data)
    except ValueError as error:
        message = f"the index {place.url}/{NAME} cannot be used: {error}. Delete it; the next run builds it again"
        raise StoreError(message, place.url, NAME) from None


def scan(store: Store, format: Format, shard: Shard) -> Spans:
    """Read a whole shard with bounded memory, and find its samples. Raises BrokenShard."""
    if not shard.size_bytes:
        return Spans([], [], [])
    file = io.BufferedReader(_Ranges(store, shard), _CHUNK)

    def read(start: int, length: int) -> bytes:
        file.seek(start)
        return file.read(length)

    starts: list[int] = []
    ends: list[int] = []
    checksums: list[int] = []
    try:
        for piece in format.pieces(read, shard.size_bytes):
            if piece.first:
                starts.append(piece.start)
                ends.append(piece.start)
                checksums.append(0)
            at = ends[-1]
            while at < piece.end:
                data = read(at, min(_CHUNK, piece.end - at))
                if not data:
                    raise ValueError(f"truncated at byte {at}")
                checksums[-1] = zlib.crc32(data, checksums[-1])
                at += len(data)
            ends[-1] = piece.end
    except ValueError as error:
        raise BrokenShard(f"{store.url}/{shard.key}: {error}", store.url, shard.key) from None
    return Spans(starts, ends, checksums)


class _Ranges(io.RawIOBase):
    """A shard as a file that is read in ranges."""

    def __init__(self, store: Store, shard: Shard) -> None:
        self._store = store
        self._shard = shard
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0 if whence == io.SEEK_SET else self._at)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        length = min(len(buffer), self._shard.size_bytes - self._at)
        if length <= 0:
            return 0
        data = self._store.read(self._shard.key, self._at, length, self._shard.etag)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _divide(shards: list[Shard]) -> Iterator[list[Shard]]:
    unit: list[Shard] = []
    size = 0
    for shard in shards:
        if unit and (len(unit) == UNIT_SHARDS or size + shard.size_bytes > UNIT_BYTES):
            yield unit
            unit, size = [], 0
        unit.append(shard)
        size += shard.size_bytes
    yield unit


def _unit_name(format: Format, shards: list[Shard]) -> str:
    rows = json.dumps([indexes.VERSION, format.name, shards])
    return f"{FOLDER}unit-{sha256(rows.encode()).hexdigest()[:32]}"
