"""Scans a kernel log for findings: incremental, with bounded memory, and faster than a log can be written.

One pattern matches the beginning of each line; a line that it does not match costs about 0.1 us. Matching lines are
counted by their beginning, so a flood of a million lines is a few different beginnings with counts. Each line is
counted exactly once. What exceeds the limits is itself reported as a finding.

    bytes ─► whole lines ─► beginnings with counts ─► incidents ─► findings
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from muster.fleet.health.finding import Finding
from muster.fleet.health.headers import HEADER, LogClock
from muster.fleet.health.patterns import BEGINNING, NAMED, Sign, sign_of

PAUSE_S: Final = 60.0
"""After a pause this long, the same fault is another incident."""
INCIDENT_S_MAX: Final = 600.0
"""A longer incident is split, so that a fault that continues does not become old."""
OPEN_MAX: Final = 4096
"""The most incidents held at once; further ones are counted in one overflow finding."""
LINE_BYTES_MAX: Final = 65536
"""The rest of a longer line is ignored: all patterns are at the beginning."""
MESSAGE_BYTES_MAX: Final = 240
PIECE_BYTES: Final = 1 << 20
_FEW: Final = 256
"""The most lines of a piece that are read one by one. With more, the piece is a flood."""
_KINDS_FEW: Final = 64
"""With more different beginnings than this, a piece is not counted as a flood."""
_SIGNS_MAX: Final = 8192

OVERFLOW: Final = Sign("kernel-log", "", "overflow")

_LINE: Final = re.compile(rb"\n" + HEADER + b"(" + BEGINNING + b")")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]+")


class _Incident:
    """A finding that may still grow. `first_s` does not change: it identifies the incident."""

    __slots__ = ("count", "first_s", "last_s", "message")

    def __init__(self, first_s: float, message: str) -> None:
        self.first_s = self.last_s = first_s
        self.count = 0
        self.message = message

    def takes(self, time_s: float) -> bool:
        return self.first_s - PAUSE_S <= time_s <= min(self.last_s + PAUSE_S, self.first_s + INCIDENT_S_MAX)


class Scanner:
    """Reads one kernel log.

    Args:
        clock: converts the times of lines.
    """

    def __init__(self, clock: LogClock) -> None:
        self.clock = clock
        self.lines = 0
        """Number of whole lines read."""
        self._rest = b"\n"
        self._cutting = False
        self._flooded = False
        """Whether the last piece was a flood. The next one is then likely to be one too, and is counted at once."""
        self._signs: dict[bytes, Sign | None] = {}
        self._newest: dict[tuple[str, Sign], _Incident] = {}
        self._changed: dict[tuple[str, Sign, float], _Incident] = {}
        self._named: dict[bytes, str] = {}

    def feed(self, data: bytes) -> None:
        """Take the next bytes; they may be cut at any place."""
        for start in range(0, len(data), PIECE_BYTES):
            self._feed(data[start : start + PIECE_BYTES])

    def end(self) -> None:
        """End the log: the remaining bytes are a line too."""
        if len(self._rest) > 1:
            self._scan(self._rest)
        self._rest, self._cutting = b"\n", False

    def take(self) -> list[tuple[str, Finding]]:
        """Return findings that are new or have grown since the last call, oldest first, each with its host or ""."""
        taken = [
            (host, _finding(sign, incident))
            for (host, sign, _), incident in sorted(self._changed.items(), key=lambda item: (item[1].first_s, item[0]))
        ]
        self._changed.clear()
        while len(self._newest) > OPEN_MAX // 2:
            del self._newest[next(iter(self._newest))]
        return taken

    def _feed(self, data: bytes) -> None:
        if self._cutting:
            end = data.find(b"\n")
            if end < 0:
                return
            data, self._cutting = data[end:], False
        end = data.rfind(b"\n")
        if end < 0:
            self._rest += data
            if len(self._rest) > LINE_BYTES_MAX:
                self._rest, self._cutting = self._rest[:LINE_BYTES_MAX], True
            return
        whole, self._rest = self._rest + data[:end], data[end:]
        self._scan(whole)

    def _scan(self, piece: bytes) -> None:
        """Read whole lines, each with the newline before it."""
        self.lines += piece.count(b"\n")
        if not self._flooded:
            found = list(islice(_LINE.finditer(piece), _FEW + 1))
            if len(found) <= _FEW:
                self._one_by_one(piece, found)
                return
        kinds = Counter(_LINE.findall(piece))
        self._flooded = kinds.total() > _FEW
        if kinds and (len(kinds) > _KINDS_FEW or not self._as_flood(piece, kinds)):
            self._one_by_one(piece, _LINE.finditer(piece))

    def _one_by_one(self, piece: bytes, found: Iterable[re.Match[bytes]]) -> None:
        for match in found:
            sign = self._sign(match[2])
            if sign is None:
                continue
            host = match[1] or b""
            if sign[::2] == NAMED:
                self._named[host] = sign.component
                continue
            if not sign.component and sign.check == NAMED[0] and host in self._named:
                sign = sign._replace(component=self._named.pop(host))
            self._observe(host, sign, 1, self._time(piece, match), None, _message(piece, match))

    def _as_flood(self, piece: bytes, kinds: Counter[tuple[bytes, bytes]]) -> bool:
        """Count a piece without reading each line. Returns False, and counts nothing, if the result could be wrong."""
        seen = []
        for (host, beginning), count in kinds.items():
            sign = self._sign(beginning)
            first, last = _edge(piece, host, beginning, bytes.find), _edge(piece, host, beginning, bytes.rfind)
            if sign is None or first is None or last is None or (sign.check == NAMED[0] and not sign.component):
                return False
            seen.append((host, sign, count, self._time(piece, first), self._time(piece, last), _message(piece, first)))
        first_s, last_s = min(each[3] for each in seen), max(each[4] for each in seen)
        if last_s - first_s > PAUSE_S or any(first > last for *_, first, last, _ in seen):
            return False
        if not all(self._stays_one(host, sign, first, last) for host, sign, _, first, last, _ in seen):
            return False
        for each in seen:
            self._observe(*each)
        return True

    def _stays_one(self, host: bytes, sign: Sign, first_s: float, last_s: float) -> bool:
        """Return whether all lines between the two times belong to one incident: the newest, or a new one."""
        newest = self._newest.get((host.decode(errors="replace"), sign))
        return newest is None or not newest.takes(first_s) or last_s <= newest.first_s + INCIDENT_S_MAX

    def _observe(self, host: bytes, sign: Sign, count: int, first_s: float, last_s: float | None, message: str) -> None:
        place = (host.decode(errors="replace"), sign)
        incident = self._newest.get(place)
        if incident is None or not incident.takes(first_s):
            if len(self._changed) >= OPEN_MAX:
                place, message = ("", OVERFLOW), "more different faults than are held at once"
                incident = self._newest.get(place) or _Incident(first_s, message)
            else:
                incident = _Incident(first_s, message)
            self._newest.pop(place, None)
            self._newest[place] = incident
        incident.count += count
        incident.last_s = max(incident.last_s, first_s if last_s is None else last_s)
        self._changed[(*place, incident.first_s)] = incident

    def _sign(self, beginning: bytes) -> Sign | None:
        if beginning not in self._signs:
            if len(self._signs) >= _SIGNS_MAX:
                self._signs.clear()
            self._signs[beginning] = sign_of(beginning)
        return self._signs[beginning]

    def _time(self, piece: bytes, match: re.Match[bytes]) -> float:
        said = self.clock.time_of(piece[match.start() + 1 : match.start(2)])
        return self.clock.now_s if said is None else said


def _edge(
    piece: bytes, host: bytes, beginning: bytes, look: Callable[[bytes, bytes, int, int], int]
) -> re.Match[bytes] | None:
    """Return the first (bytes.find) or last (bytes.rfind) line with this host and beginning."""
    low, high = 0, len(piece)
    while (at := look(piece, beginning, low, high)) >= 0:
        match = _LINE.match(piece, piece.rfind(b"\n", 0, at))
        if match is not None and match[2] == beginning and (match[1] or b"") == host:
            return match
        if look is bytes.find:
            low = at + 1
        else:
            high = at + len(beginning) - 1
    return None


def _message(piece: bytes, match: re.Match[bytes]) -> str:
    start = match.start(2)
    end = piece.find(b"\n", start, start + MESSAGE_BYTES_MAX)
    text = piece[start : start + MESSAGE_BYTES_MAX if end < 0 else end].decode(errors="replace")
    return _CONTROL.sub(" ", text).strip()


def _finding(sign: Sign, incident: _Incident) -> Finding:
    return Finding(
        check=sign.check,
        component=sign.component,
        code=sign.code,
        count=incident.count,
        first_s=incident.first_s,
        last_s=incident.last_s,
        message=incident.message,
    )
