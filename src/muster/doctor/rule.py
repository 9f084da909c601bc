"""What a rule and a collector are: a rule is pure, and a collector reads evidence that metrics do not have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from muster.api.finding import Finding
from muster.api.reader import Reader
from muster.doctor.etcd.access import EtcdAccess
from muster.doctor.evidence import Evidence
from muster.doctor.samples import Page
from muster.kube.client import Client


class Rule(NamedTuple):
    """A rule of the doctor.

    Attributes:
        name: its module's name.
        families: metric families that it reads, without the suffixes of histograms.
        find: returns its findings. Pure: no I/O, no clock. If evidence is missing, it finds nothing.
        needs: what it examines, and alternative metrics for it. Without all of them, it was not examined.
    """

    name: str
    families: frozenset[str]
    find: Callable[[Evidence], Iterable[Finding]]
    needs: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The user's options.

    Attributes:
        planned: planned number of nodes; 0 means ten times today's.
        window_s: time between the two readings of the metrics, in seconds.
        audit_log: logs of requests to read besides: of the API server, the read cache or the recorder.
        etcd: where etcd's own metrics are.
    """

    planned: int = 0
    window_s: float = 10.0
    audit_log: tuple[Path, ...] = ()
    etcd: EtcdAccess = EtcdAccess()


class Context(NamedTuple):
    """What a collector has.

    Attributes:
        reader: reads from the API server.
        options: the user's options.
        nodes: number of nodes; 0 if not known.
        first: the first reading of the metrics, one page for each API server.
        clients: a client for each API server.
    """

    reader: Reader
    options: Options
    nodes: int
    first: tuple[Page, ...]
    clients: tuple[Client, ...]


class Collector(Protocol):
    """Reads one part of the evidence while the window lasts. Collectors run at the same time."""

    def __call__(self, context: Context, /) -> Awaitable[object | None]:
        """Return the part; None if it cannot be seen, which it notes in the reader's `unseen`."""
