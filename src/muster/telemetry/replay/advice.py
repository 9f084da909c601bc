"""Decides what would make a replay shorter or smaller, and by how much."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from muster.telemetry.replay.model import Coefficients, Prediction, ReplaySize, Trust, predict
from muster.telemetry.replay.wal.folder import Damage

GIB: Final = 1 << 30
_MIB: Final = 1 << 20
_LIMIT_STEP: Final = 256 * _MIB
_WORTH: Final = 0.9
"""Advice that saves less than a tenth of the time is left out."""
_SHORT_S: Final = 30.0
_FEWER: Final = 0.5
_QUOTA_SINCE: Final = 3

Kind = Literal[
    "memory-limit", "startup-deadline", "cpu", "gomaxprocs", "snapshot", "shorter-head", "fewer-series", "damage"
]
Severity = Literal["error", "warning", "hint"]


class Settings(msgspec.Struct, frozen=True):
    """How a server runs. None and 0 stand for unknown values.

    Attributes:
        cores: its CPU limit, or the cores of its machine.
        gomaxprocs: threads that run Go code at once.
        memory_limit_bytes: of its container.
        memory_bytes: that it uses now.
        startup_limit_s: the kubelet restarts the container if it is not ready by then (startupProbe).
        snapshot: it writes a snapshot when it ends cleanly.
        version: of Prometheus.
    """

    cores: float
    gomaxprocs: int = 0
    memory_limit_bytes: int = 0
    memory_bytes: int = 0
    startup_limit_s: float = 0.0
    snapshot: bool | None = None
    version: str = ""

    @property
    def usable_cores(self) -> float:
        """The cores that a replay can use."""
        return min(self.cores, self.gomaxprocs) if self.gomaxprocs else self.cores


class Advice(msgspec.Struct, frozen=True):
    """A change, or a danger.

    Attributes:
        kind: of the advice.
        severity: `error`: the server will not come back by itself. `warning`: it may not. `hint`: it gets better.
        message: what happens, why, and what to do.
        applies: to every start, or only after a clean shutdown (not after a crash or an out-of-memory kill).
        time_s: expected time with the change; None if it does not change.
        peak_memory_bytes: expected peak with the change; None if it does not change.
        memory_limit_bytes: limit that is enough; 0 if the advice is about something else.
        startup_limit_s: time for the startup probe that is enough; 0 if the advice is about something else.
    """

    kind: Kind
    severity: Severity
    message: str
    applies: Literal["every start", "clean restarts"] = "every start"
    time_s: float | None = None
    peak_memory_bytes: float | None = None
    memory_limit_bytes: int = 0
    startup_limit_s: float = 0.0


def advise(
    size: ReplaySize,
    settings: Settings,
    coefficients: Coefficients,
    trust: Trust = "elsewhere",
    damage: Damage | None = None,
) -> list[Advice]:
    """Return advice about a replay, dangers first."""
    expected = predict(size, settings.usable_cores, coefficients, trust)
    found = [
        *_damage(damage),
        *_memory(expected, settings),
        *_deadline(expected, settings),
        *_cpu(size, settings, coefficients, expected),
        *_snapshot(size, settings, coefficients, expected),
        *_shorter_head(size, settings, coefficients, expected),
        *_fewer_series(size, settings, coefficients, expected),
    ]
    order: dict[Severity, int] = {"error": 0, "warning": 1, "hint": 2}
    return sorted(found, key=lambda each: order[each.severity])


def after_snapshot(
    size: ReplaySize, settings: Settings, coefficients: Coefficients, trust: Trust = "elsewhere"
) -> Prediction:
    """Predict a start with a snapshot of a clean shutdown: series are created, and samples are there already."""
    return predict(msgspec.structs.replace(size, samples=0), settings.usable_cores, coefficients, trust)


def _damage(damage: Damage | None) -> list[Advice]:
    if damage is None:
        return []
    if damage.fatal:
        message = (
            f"the log is damaged ({damage.file}, byte {damage.offset}: {damage.reason}), and Prometheus refuses "
            "to start with it: move the folder wal away, which loses the samples since the last block"
        )
        return [Advice("damage", "error", message)]
    message = (
        f"{damage.file} is damaged at byte {damage.offset} ({damage.reason}): Prometheus drops the log from there on, "
        f"{damage.lost_bytes} bytes, when it starts; copy the folder first if you need them"
    )
    return [Advice("damage", "warning", message)]


def _memory(expected: Prediction, settings: Settings) -> list[Advice]:
    limit, peak, most = settings.memory_limit_bytes, expected.peak_memory_bytes, expected.most_memory_bytes
    if not limit or most <= limit:
        return []
    wanted = -(-int(most) // _LIMIT_STEP) * _LIMIT_STEP
    sure = peak > limit
    what = "needs more memory than its limit" if sure else "may need more memory than its limit"
    now = f", although it uses {_gib(settings.memory_bytes)} now" if 0 < settings.memory_bytes < limit else ""
    message = (
        f"a replay {what} of {_gib(limit)}{now}: the kernel would kill the server at every start, a crash loop; "
        f"raise the limit to {_gib(wanted)}, or reduce the series"
    )
    return [Advice("memory-limit", "error" if sure else "warning", message, memory_limit_bytes=wanted)]


def _deadline(expected: Prediction, settings: Settings) -> list[Advice]:
    limit_s = settings.startup_limit_s
    if not limit_s or expected.longest_s <= limit_s:
        return []
    sure = expected.time_s > limit_s
    message = (
        f"a replay {'takes' if sure else 'may take'} longer than the {limit_s:.0f} s that the startup probe allows: "
        f"the kubelet restarts the server again and again; allow at least {expected.longest_s:.0f} s "
        "(failureThreshold x periodSeconds)"
    )
    severity: Severity = "error" if sure else "warning"
    return [Advice("startup-deadline", severity, message, startup_limit_s=expected.longest_s)]


def _cpu(size: ReplaySize, settings: Settings, coefficients: Coefficients, expected: Prediction) -> list[Advice]:
    found = []
    if settings.gomaxprocs > settings.cores and _major(settings.version) not in (0, *range(_QUOTA_SINCE, 100)):
        message = (
            f"GOMAXPROCS is {settings.gomaxprocs}, and the CPU limit {settings.cores:g}: the kernel stops the server "
            f"in the middle of its work; set GOMAXPROCS={max(round(settings.cores), 1)}, or use Prometheus 3, which "
            "follows the limit"
        )
        found.append(Advice("gomaxprocs", "warning", message))
    if 0 < settings.gomaxprocs < settings.cores:
        message = f"GOMAXPROCS is {settings.gomaxprocs}, less than the {settings.cores:g} cores: raise it"
        found.append(Advice("gomaxprocs", "hint", message))
    more = max(2 * settings.cores, 1.0)
    faster = predict(size, more, coefficients)
    if expected.time_s >= _SHORT_S and faster.time_s < _WORTH * expected.time_s:
        message = (
            f"a CPU limit of {more:g} cores shortens the replay; more than that helps less, since decoding is serial"
        )
        found.append(Advice("cpu", "hint", message, time_s=faster.time_s))
    return found


def _snapshot(size: ReplaySize, settings: Settings, coefficients: Coefficients, expected: Prediction) -> list[Advice]:
    """Advise a snapshot: series are still created one by one, and only the samples are saved (#16430)."""
    faster = after_snapshot(size, settings, coefficients)
    if settings.snapshot or expected.time_s < _SHORT_S or faster.time_s >= _WORTH * expected.time_s:
        return []
    message = (
        "--enable-feature=memory-snapshot-on-shutdown saves the samples of a replay, not its series; it needs a "
        "terminationGracePeriodSeconds that is long enough to write the snapshot"
    )
    return [Advice("snapshot", "hint", message, "clean restarts", faster.time_s)]


def _shorter_head(
    size: ReplaySize, settings: Settings, coefficients: Coefficients, expected: Prediction
) -> list[Advice]:
    half = predict(msgspec.structs.replace(size, samples=size.samples // 2), settings.usable_cores, coefficients)
    if expected.time_s < _SHORT_S or half.time_s >= _WORTH * expected.time_s:
        return []
    message = (
        "--storage.tsdb.min-block-duration=1h keeps half of the samples in the log (the flag is hidden, and makes more "
        "and smaller blocks); twice the scrape interval has the same effect and saves disk too"
    )
    return [Advice("shorter-head", "hint", message, time_s=half.time_s, peak_memory_bytes=half.peak_memory_bytes)]


def _fewer_series(
    size: ReplaySize, settings: Settings, coefficients: Coefficients, expected: Prediction
) -> list[Advice]:
    in_danger = bool(settings.memory_limit_bytes) and expected.most_memory_bytes > settings.memory_limit_bytes
    if expected.time_s < _SHORT_S and not in_danger:
        return []
    less = ReplaySize(*(round(getattr(size, name) * _FEWER) for name in ReplaySize.__struct_fields__))
    after = predict(less, settings.usable_cores, coefficients)
    message = (
        "half of the series: `muster telemetry unused` lists metrics that are scraped and not used, and "
        "`muster telemetry cardinality` the labels that grow"
    )
    return [Advice("fewer-series", "hint", message, time_s=after.time_s, peak_memory_bytes=after.peak_memory_bytes)]


def _major(version: str) -> int:
    """Return the major version; 0 if it is not known."""
    first = version.partition(".")[0]
    return int(first) if first.isdigit() else 0


def _gib(size_bytes: float) -> str:
    return f"{size_bytes / GIB:.2f} GiB"
