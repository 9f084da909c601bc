"""The page /guard/dearest, as the guard writes it and `muster telemetry dearest` reads it."""

from __future__ import annotations

from typing import Final

import msgspec

from muster.telemetry.prometheus.answers import Int64

PATH: Final = "/guard/dearest"


class LastRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The last request of a query.

    Attributes:
        time: seconds since the epoch.
        outcome: `sent`, `gone` if the client went away, or the reason of a refusal.
        range_s: seconds between start and end.
        step_s: the step; 0 without one.
        series: priced series.
        samples: priced samples.
    """

    time: float
    outcome: str
    range_s: float = msgspec.field(name="rangeSeconds")
    step_s: float = msgspec.field(name="stepSeconds")
    series: int
    samples: int


class DearQuery(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Equal requests of one caller, from one panel. Dashboard, panel and rule are claims of the caller.

    Attributes:
        recent_cost: sum of the costs. A cost counts half after each half-life.
        requests: how many there were.
        not_sent: how many were refused.
        max_cost: greatest cost of one.
        mean_s: mean seconds of those that were sent, until the end of the answer.
        max_s: most seconds of one.
        max_answer_bytes: bytes of the largest answer.
    """

    caller: str
    group: str
    kind: str
    query: str
    dashboard_uid: str
    dashboard_title: str
    panel_id: str
    panel_title: str
    rule_uid: str
    org_id: str
    recent_cost: float
    requests: Int64
    not_sent: Int64
    max_cost: float
    mean_s: float = msgspec.field(name="meanSeconds")
    max_s: float = msgspec.field(name="maxSeconds")
    max_answer_bytes: Int64
    last: LastRequest


class DearestPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The dearest queries that a caller may see, the dearest first.

    Attributes:
        of: `all`, or the name of the caller whose queries these are.
        half_life_s: of recent costs.
        queries: the queries.
    """

    of: str
    half_life_s: float = msgspec.field(name="halfLifeSeconds")
    queries: tuple[DearQuery, ...]
