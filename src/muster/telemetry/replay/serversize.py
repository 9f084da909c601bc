"""What a running server would replay, from its own metrics and status pages."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Mapping
from typing import Final, TypeVar

import msgspec

from muster.telemetry.prometheus.client import PrometheusClient, matchers
from muster.telemetry.prometheus.durations import seconds_of
from muster.telemetry.prometheus.errors import PrometheusError
from muster.telemetry.prometheus.page import Page, parse_page
from muster.telemetry.replay.model import ReplaySize

LABEL_BYTES_EACH: Final = 230
"""Bytes of names and values of the labels of a series; servers do not export this figure."""
LABELS_EACH: Final = 9
"""Labels of a series; servers do not export this figure either."""
PAIRS_EACH: Final = 0.1
"""Different label pairs for each series, if the server does not show them."""
STORED_SAMPLE_BYTES: Final = 7.5
_RATE_S: Final = 900.0
_RATE_LEAST_S: Final = 120.0
_SETTLE_S: Final = 300.0
"""After its replay, a server needs about so long until it has scraped each target: series that are new then do not
count as churn. Targets are found in batches of 5 s and scraped once in an interval, which is a minute by default."""
_HEAD_MOST: Final = 1.5
"""A head is compacted when it is this many times as long as a block (tsdb/head.go, `compactable`)."""
_MEMORY_RATIO: Final = 0.9
_SNAPSHOT_FEATURE: Final = "memory-snapshot-on-shutdown"
_QUERY_S: Final = 10.0
_BLOCK_S: Final = 7200.0
_UNLIMITED_BYTES: Final = 1 << 60

T = TypeVar("T")


class ServerState(msgspec.Struct, frozen=True):
    """A running server.

    Attributes:
        url: its address.
        version: of Prometheus; empty if its build has none.
        now: what it would replay now.
        worst: what it would replay just before its head becomes a block, when the log is longest.
        head_s: length of its head.
        head_most_s: length of a head that becomes a block.
        samples_per_s: that it stores.
        gomaxprocs: threads that run Go code at once; 0 if it is not known.
        memory_limit_bytes: that it found, by GOMEMLIMIT; 0 without one.
        memory_bytes: resident memory now.
        snapshot: it writes a snapshot when it ends; None if it is not known.
        last_replay_s: duration of its last replay.
        started_s: when its process started, Unix seconds.
        own: matchers of its own series, if it scrapes itself; empty if not.
        notes: what could not be found.
    """

    url: str
    version: str
    now: ReplaySize
    worst: ReplaySize
    head_s: float
    head_most_s: float
    samples_per_s: float
    gomaxprocs: int
    memory_limit_bytes: int
    memory_bytes: int
    snapshot: bool | None
    last_replay_s: float
    started_s: float
    own: str
    notes: tuple[str, ...]


async def read_server(client: PrometheusClient) -> ServerState:
    """Read a server: its page of metrics, its flags, and cheap queries of its own series.

    Raises:
        PrometheusError: it cannot be reached, or its page is not that of a Prometheus server with a database.
    """
    page = parse_page(await client.page("/metrics"))
    series = page.value("prometheus_tsdb_head_series")
    if series is None:
        raise PrometheusError(
            200,
            f"{client.url}/metrics does not have prometheus_tsdb_head_series: it is not the page of a Prometheus "
            "server with a database of its own (Mimir, Thanos and VictoriaMetrics have none that is replayed so)",
            "not-prometheus",
        )
    notes: list[str] = []
    flags, runtime, status, own = await asyncio.gather(
        _optional(client.flags(), notes, "flags"),
        _optional(client.runtimeinfo(), notes, "runtime"),
        _optional(client.tsdb_status(limit=1), notes, "number of label pairs"),
        _own(client, page),
    )
    flags = flags or {}
    pairs = status.head_stats.num_label_pairs if status else 0
    pairs_each = pairs / series if pairs and series else PAIRS_EACH
    started_s = page.value("process_start_time_seconds") or 0.0
    replay_s = page.value("prometheus_tsdb_data_replay_duration_seconds") or 0.0
    up_s = max(time.time() - started_s - replay_s, 0.0)
    samples_per_s = await _rate(client, page, own, up_s, notes)
    first, last = (page.value(f"prometheus_tsdb_head_{end}_time_seconds") or 0.0 for end in ("min", "max"))
    head_s = max(last - first, 0.0)
    block_s = _BLOCK_S
    with contextlib.suppress(ValueError):
        block_s = seconds_of(flags.get("storage.tsdb.min-block-duration") or "2h")
    head_most_s = max(_HEAD_MOST * block_s, head_s)
    created_per_s = await _churn(client, own, up_s, notes)
    worst_series = series + created_per_s * (head_most_s - head_s)
    stored = page.value("prometheus_tsdb_wal_storage_size_bytes")
    return ServerState(
        url=client.url,
        version=next((each.labels.get("version", "") for each in page.samples("prometheus_build_info")), ""),
        now=_size(series, samples_per_s * head_s, pairs_each, stored),
        worst=_size(worst_series, samples_per_s * head_most_s, pairs_each),
        head_s=head_s,
        head_most_s=head_most_s,
        samples_per_s=samples_per_s,
        gomaxprocs=runtime.gomaxprocs if runtime else 0,
        memory_limit_bytes=_memory_limit(runtime.gomemlimit if runtime else 0, flags),
        memory_bytes=round(page.value("process_resident_memory_bytes") or 0.0),
        snapshot=_SNAPSHOT_FEATURE in flags["enable-feature"].split(",") if "enable-feature" in flags else None,
        last_replay_s=replay_s,
        started_s=started_s,
        own=own,
        notes=tuple(notes),
    )


async def _optional(answer: Awaitable[T], notes: list[str], what: str) -> T | None:
    """Return an answer that a proxy may deny; None and a note without it."""
    try:
        return await answer
    except PrometheusError as error:
        notes.append(f"the server's {what} cannot be read: {error.message}")
        return None


async def _own(client: PrometheusClient, page: Page) -> str:
    """Return matchers of the server's own series. Its start time identifies it among other servers."""
    started = page.value("process_start_time_seconds")
    if started is None:
        return ""
    try:
        found = await client.query(f"process_start_time_seconds == {started!r}", timeout_s=_QUERY_S)
    except PrometheusError:
        return ""
    if len(found) != 1:
        return ""
    return matchers([(name, value) for name, value in sorted(found[0].labels.items()) if name != "__name__"])


async def _rate(client: PrometheusClient, page: Page, own: str, up_s: float, notes: list[str]) -> float:
    """Return the samples that are stored in a second, lately, or since the server started `up_s` ago."""
    range_s = min(max(up_s, _RATE_LEAST_S), _RATE_S)
    appended = f"prometheus_tsdb_head_samples_appended_total{own}[{range_s:.0f}s]"
    lately = await _value(client, f"sum(rate({appended}))", own)
    if lately is not None:
        return lately
    notes.append("the server does not scrape itself, so its samples a second are the average since it started")
    return (page.value("prometheus_tsdb_head_samples_appended_total") or 0.0) / up_s if up_s > 0 else 0.0


async def _churn(client: PrometheusClient, own: str, up_s: float, notes: list[str]) -> float:
    """Return the series that are new in a second, apart from those of the first scrapes after the start."""
    if not own:
        notes.append("how many series come and go is not known, so the longest log has those of now")
        return 0.0
    range_s = min(up_s - _SETTLE_S, _RATE_S)
    created = None
    if range_s >= _RATE_LEAST_S:
        expression = f"rate(prometheus_tsdb_head_series_created_total{own}[{range_s:.0f}s])"
        created = await _value(client, expression, own)
    if created is None:
        notes.append(
            f"the server started {_age(up_s)} ago, so it is not known yet how many series come and go: the "
            f"longest log has those of now. Ask again when it is {(_SETTLE_S + _RATE_S) / 60:.0f} min old"
            if up_s < _SETTLE_S + _RATE_LEAST_S
            else "the server has no rate of new series, so the longest log has those of now"
        )
    elif range_s < _RATE_S:
        notes.append(
            f"the server started {_age(up_s)} ago, so how many series come and go was measured over "
            f"{range_s / 60:.0f} min only: ask again when it is {(_SETTLE_S + _RATE_S) / 60:.0f} min old"
        )
    return created or 0.0


def _age(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


async def _value(client: PrometheusClient, expression: str, own: str) -> float | None:
    if not own:
        return None
    try:
        return await client.value(expression, timeout_s=_QUERY_S)
    except PrometheusError:
        return None


def _size(series: float, samples: float, pairs_each: float, stored_bytes: float | None = None) -> ReplaySize:
    stored = samples * STORED_SAMPLE_BYTES if stored_bytes is None else stored_bytes
    return ReplaySize(
        series=round(series),
        samples=round(samples),
        label_bytes=round(series * LABEL_BYTES_EACH),
        stored_bytes=round(stored),
        labels=round(series * LABELS_EACH),
        label_pairs=round(series * pairs_each),
    )


def _memory_limit(gomemlimit: int, flags: Mapping[str, str]) -> int:
    """Return the limit of memory from which the server derived GOMEMLIMIT (`--auto-gomemlimit`, since 3.0)."""
    if not 0 < gomemlimit < _UNLIMITED_BYTES:
        return 0
    try:
        ratio = float(flags.get("auto-gomemlimit.ratio", "")) if flags.get("auto-gomemlimit") == "true" else 1.0
    except ValueError:
        ratio = _MEMORY_RATIO
    return round(gomemlimit / ratio) if ratio > 0 else gomemlimit
