"""Calibration from the last real restart of a server that scrapes itself."""

from __future__ import annotations

from typing import Final

import msgspec

from muster.telemetry.prometheus.client import PrometheusClient
from muster.telemetry.replay.model import Coefficients, ReplaySize, predict
from muster.telemetry.replay.serversize import LABEL_BYTES_EACH, LABELS_EACH, ServerState

_BEFORE_S: Final = 60.0
_RANGE: Final = "15m"
_QUERY_S: Final = 20.0
_LEAST_S: Final = 1.0


class NoRestart(Exception):
    """The last restart does not show how fast the server replays. The message says why."""


class Restart(msgspec.Struct, frozen=True):
    """The last restart of a server.

    Attributes:
        size: what was replayed.
        time_s: that it took.
        coefficients: those before it, with times scaled to it.
    """

    size: ReplaySize
    time_s: float
    coefficients: Coefficients


async def calibrate_by_restart(
    client: PrometheusClient, state: ServerState, cores: float, before: Coefficients
) -> Restart:
    """Scale the times of coefficients to the last replay of a server. Memory is not scaled: its peak is not recorded.

    Raises:
        NoRestart: the server does not scrape itself, or its last replay was too short or not of a log.
        PrometheusError: a query failed.
    """
    if not state.own:
        raise NoRestart("the server does not scrape itself, so the size of its log before the restart is not known")
    if state.last_replay_s < _LEAST_S:
        raise NoRestart(f"the last replay took {state.last_replay_s:.1f} s, which is too short to calibrate with")
    own, at_s = state.own, state.started_s - _BEFORE_S
    # `instance` and `job` stay the same over a restart.
    series = await client.value(f"prometheus_tsdb_head_series{own}", at_s, _QUERY_S)
    rate = await client.value(f"sum(rate(prometheus_tsdb_head_samples_appended_total{own}[{_RANGE}]))", at_s, _QUERY_S)
    head_s = await client.value(
        f"prometheus_tsdb_head_max_time_seconds{own} - prometheus_tsdb_head_min_time_seconds{own}", at_s, _QUERY_S
    )
    if not series or rate is None or head_s is None:
        raise NoRestart("the server has no samples of itself from the minute before it started")
    samples = round(rate * max(head_s, 0.0))
    label_bytes, labels = round(series * LABEL_BYTES_EACH), round(series * LABELS_EACH)
    pairs = round(series * state.now.label_pairs / state.now.series) if state.now.series else 0
    size = ReplaySize(round(series), samples, label_bytes, labels=labels, label_pairs=pairs)
    factor = state.last_replay_s / predict(size, cores, before).time_s
    scaled = msgspec.structs.replace(
        before,
        **{name: getattr(before, name) * factor for name in Coefficients.__struct_fields__ if name.endswith("_s")},
    )
    return Restart(size, state.last_replay_s, scaled)
