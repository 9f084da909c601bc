"""Peak memory of a server, which is ended if it takes more than a limit, as the kernel would do; and of a request."""

from __future__ import annotations

import contextlib
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench.guard.servers import figures
from tests.support.prometheus import Prometheus

LIMIT_BYTES = 10 << 30
_POLL_S = 0.05
_CALM_S = 0.5
_CALM_TIMES = 3
_CALM_SHARE = 0.01
_CALM_MAX_S = 15.0


@dataclass
class Peak:
    """Resident memory before a load, and its peak under it; `ended` if it reached the limit."""

    before_bytes: int
    peak_bytes: int = 0
    ended: bool = False

    @property
    def grown_bytes(self) -> int:
        """The growth."""
        return self.peak_bytes - self.before_bytes


def settle(server: Prometheus) -> None:
    """Collect garbage, and wait until memory and CPU time of the server stand still, for at most some seconds."""
    for _ in range(2):
        urllib.request.urlopen(f"{server.url}/debug/pprof/heap?gc=1", timeout=60).read()
    deadline, calm = time.monotonic() + _CALM_MAX_S, 0
    rss, cpu_s = server.rss_bytes(), server.cpu_s()
    while calm < _CALM_TIMES and time.monotonic() < deadline:
        time.sleep(_CALM_S)
        before, before_s, rss, cpu_s = rss, cpu_s, server.rss_bytes(), server.cpu_s()
        calm = calm + 1 if abs(rss - before) < before * _CALM_SHARE and cpu_s - before_s < _CALM_S / 5 else 0


@contextlib.contextmanager
def peak_of(server: Prometheus, limit_bytes: int = LIMIT_BYTES) -> Iterator[Peak]:
    """Measure the peak within the block."""
    settle(server)
    server.reset_peak()
    peak = Peak(server.rss_bytes())

    def look() -> bool:
        try:
            peak.peak_bytes = max(peak.peak_bytes, server.rss_bytes(peak=True))
        except (RuntimeError, OSError):
            return False
        peak.ended = peak.peak_bytes > limit_bytes
        if peak.ended:
            server.process.kill()
        return not peak.ended

    try:
        with _repeating(look):
            yield peak
    finally:
        if not peak.ended:
            peak.peak_bytes = server.rss_bytes(peak=True)


@dataclass
class InUse:
    """Memory that a server uses for a request: beside the one before it, after garbage was collected.

    Resident memory alone does not show it: Go keeps pages that it does not use, and returns them late. A request that
    gets such pages seems to take nothing; pages that are returned during it seem to be negative.

    Attributes:
        before_bytes: that Go used, without idle pages.
        resident_bytes: resident memory before the request, with idle pages.
        peak_bytes: the most that Go used in a sample; a request that ends between two samples is not seen.
        resident_peak_bytes: peak of resident memory, by the kernel.
    """

    before_bytes: int
    resident_bytes: int
    peak_bytes: int = 0
    resident_peak_bytes: int = 0

    @property
    def grown_bytes(self) -> int:
        """The growth. If resident memory grew more than the samples show, it counts."""
        return max(self.peak_bytes - self.before_bytes, self.resident_peak_bytes - self.resident_bytes)


@contextlib.contextmanager
def in_use_of(server: Prometheus) -> Iterator[InUse]:
    """Measure the growth of memory within the block, which is independent of what was asked before."""
    settle(server)
    server.reset_peak()
    used = InUse(_in_use_bytes(server), server.rss_bytes())
    used.peak_bytes = used.before_bytes

    def look() -> bool:
        with contextlib.suppress(OSError):  # a busy server answers late
            used.peak_bytes = max(used.peak_bytes, _in_use_bytes(server))
        return True

    try:
        with _repeating(look):
            yield used
    finally:
        used.resident_peak_bytes = server.rss_bytes(peak=True)


@contextlib.contextmanager
def _repeating(look: Callable[[], bool]) -> Iterator[None]:
    """Call `look` in a thread within the block, until it returns False."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(_POLL_S) and look():
            pass

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()


def _in_use_bytes(server: Prometheus) -> int:
    mapped, idle = figures(server, "go_memstats_sys_bytes", "go_memstats_heap_idle_bytes")
    return round(mapped - idle)
