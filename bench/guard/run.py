"""All parts for one release of Prometheus; prints each figure as it comes."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from typing import Final

from bench.guard import crowd, estimates, latency, outage
from bench.guard.corpus import fitted
from bench.guard.crowd import quantile
from bench.guard.estimates import Compared
from bench.guard.guardprocess import guarding, peak_bytes
from bench.guard.heldout import held_out
from bench.guard.memory import Peak
from bench.guard.replays import predicted, replayed
from bench.guard.servers import Data, Release, fill_other, settle, started
from tests.support.prometheus import Prometheus

PARTS: Final = ("replay", "memory", "latency", "estimates")
_MB: Final = 1e6


class Run:
    """One release, on a log of its own.

    Attributes:
        release: of Prometheus.
        values: of each figure, one for each repetition.
    """

    def __init__(self, release: Release, data: Data, lasting_s: float) -> None:
        self.release = release
        self.values: dict[str, list[float]] = defaultdict(list)
        self._data = data
        self._lasting_s = lasting_s
        self._guards = data.folder.with_name(f"{data.folder.name}-guard")
        self._began_s = time.monotonic()

    def all(self, parts: tuple[str, ...], repetitions: int) -> None:
        """Run these parts."""
        if "replay" in parts:
            self._predict()
        if "memory" in parts:
            for _ in range(repetitions):
                self._memory()
        if "latency" in parts:
            self._latency(repetitions)
        if "estimates" in parts:
            self._estimates()

    def _add(self, name: str, **values: float) -> None:
        for key, value in values.items():
            self.values[f"{name}_{key}"].append(value)
        shown = " ".join(f"{key}={value:.4g}" for key, value in values.items())
        print(f"{time.monotonic() - self._began_s:5.0f} s  {self.release.name} {name}: {shown}", file=sys.stderr)

    def _predict(self) -> None:
        prediction = predicted(self.release, self._data)
        self._add("predicted", undisturbed_s=prediction.time_s, peak_mb=prediction.peak_memory_bytes / _MB)
        with started(self._data) as server:
            self._replayed(server)

    def _replayed(self, server: Prometheus) -> None:
        found = replayed(server)
        self._add("replay", time_s=found.time_s, undisturbed_s=found.undisturbed_s, peak_mb=found.peak_bytes / _MB)

    def _memory(self) -> None:
        """One repetition: a replay, the query of the outage, and the users; each through the guard, and then direct."""
        with started(self._data) as server:
            self._replayed(server)
            with guarding(self._guards, server.url) as guard:
                for side, url in (("guarded", guard.url), ("direct", server.url)):
                    self._outage(server, side, url)
                for side, url in (("guarded", guard.url), ("direct", server.url)):
                    self._users(server, side, url)
                self._add("guard", peak_mb=peak_bytes(guard) / _MB)

    def _outage(self, server: Prometheus, side: str, url: str) -> None:
        memory, answer = outage.measure(server, url, self._data.end_s)
        self._add(
            f"outage_{side}",
            **_memory(memory),
            status=answer.status,
            answer_mb=answer.size_bytes / _MB,
            seconds=answer.seconds,
        )

    def _users(self, server: Prometheus, side: str, url: str) -> None:
        memory, seen, cpu_s = crowd.measure(server, url, self._data.end_s, self._lasting_s)
        self._add(f"users_{side}", **_memory(memory), cpu_s=cpu_s, **crowd.figures(seen))

    def _latency(self, repetitions: int) -> None:
        """What the guard adds, before the light server and before the real one."""
        with started(self._data) as server, latency.light(server) as light:
            for _ in range(repetitions):
                for name, url in (("light", light), ("real", server.url)):
                    settle(server)
                    found = latency.measure(url, self._guards, self._data.end_s)
                    middle, tail, new = found.quantiles(0.5), found.quantiles(0.99), found.new_quantiles(0.5)
                    self._add(
                        f"latency_{name}",
                        direct_p50_ms=middle[0],
                        direct_p99_ms=tail[0],
                        relay_added_p50_ms=middle[1] - middle[0],
                        relay_added_p99_ms=tail[1] - tail[0],
                        added_p50_ms=middle[2] - middle[0],
                        added_p99_ms=tail[2] - tail[0],
                        guard_cpu_ms=found.guard_cpu_ms,
                        new_price_added_p50_ms=new[1] - new[0],
                    )

    def _estimates(self) -> None:
        with started(self._data) as server:
            self._compared(estimates.measure(server, fitted(), self._data.end_s), "fitted")
        folder = self._data.folder.with_name(f"{self._data.folder.name}-other")
        native = self.release.has_custom_buckets
        other = fill_other(folder, native)
        with started(other) as server:
            self._compared(estimates.measure(server, held_out(native), other.end_s), "held_out")

    def _compared(self, compared: Compared, name: str) -> None:
        self._add(
            f"estimates_{name}",
            requests=compared.requests,
            unknown=compared.unknown,
            probes=compared.probes,
            probe_ms=1000 * compared.probes_s / max(1, compared.probes),
        )
        for what in compared.pairs:
            factors = sorted(compared.factors(what))
            self._add(
                f"estimates_{name}_{what}",
                compared=len(factors),
                factor_p50=quantile(factors, 0.5),
                factor_p90=quantile(factors, 0.9),
                factor_max=factors[-1],
                bare_factor_p90=quantile(sorted(compared.bare_factors(what)), 0.9),
                within_2x=sum(factor <= estimates.FACTOR for factor in factors) / len(factors),
            )
        for what, estimate, real, of in compared.worst():
            print(f"    {what}: estimate {estimate:.4g}, real {real:.4g}: {of}", file=sys.stderr)


def _memory(peak: Peak) -> dict[str, float]:
    return {
        "before_mb": peak.before_bytes / _MB,
        "peak_mb": peak.peak_bytes / _MB,
        "grown_mb": peak.grown_bytes / _MB,
        "ended": float(peak.ended),
    }
