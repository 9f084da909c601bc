"""What the server behind the guard can do, found by cheap requests.

`buildinfo` alone is not enough: VictoriaMetrics answers as Prometheus 2.24.0, and builds from the Go module have no
version. So the support of `limit` is tried with `labels?limit=1`, which is cheap on servers that ignore it.
Sources: Prometheus' CHANGELOG (limit of labels, label values and series since 2.51, of the TSDB status since 2.45, of
queries since 3.2).
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import msgspec

from muster.telemetry.guard.query.errors import BadRequest
from muster.telemetry.guard.query.operation import Operation
from muster.telemetry.guard.query.times import parse_duration

Flavour = Literal["prometheus", "mimir", "victoriametrics", "thanos", "unknown"]
TSDB_STATUS_LIMIT: Final = 2000
"""Entries asked for in lists of the TSDB status."""
_NUMBERS: Final = re.compile(r"(\d{1,6})\.(\d{1,6})")


class Capabilities(msgspec.Struct, frozen=True):
    """What the server can do. The default assumes the least.

    Attributes:
        flavour: which program it is.
        version: as it reports it, "" if unknown.
        limits_metadata: series, labels and label values honour `limit`.
        limits_queries: queries honour `limit`.
        retention_s: how long it keeps samples, None if it does not report that.
    """

    flavour: Flavour = "unknown"
    version: str = ""
    limits_metadata: bool = False
    limits_queries: bool = False
    retention_s: float | None = None


def is_limited(operation: Operation, capabilities: Capabilities) -> bool:
    """Return whether `limit` bounds the work of this request.

    With several selectors the server sorts all series of each before it applies the limit to `series`.
    """
    if not capabilities.limits_metadata:
        return False
    return operation.kind in ("labels", "label_values") or (
        operation.kind == "series" and len(operation.selectors) == 1
    )


def read_capabilities(buildinfo: bytes | None, labels: bytes | None, runtimeinfo: bytes | None) -> Capabilities:
    """Return what the server can do, by its answers; None stands for an answer that did not come.

    Args:
        buildinfo: of `/api/v1/status/buildinfo`.
        labels: of `/api/v1/labels?limit=1`.
        runtimeinfo: of `/api/v1/status/runtimeinfo`.
    """
    data = _data(buildinfo)
    flavour, version = _flavour(data), str(_field(data, "version") or "")
    names = _data(labels)
    cut = isinstance(names, list) and len(names) == 1
    limits = cut and (flavour == "victoriametrics" or _warned(labels))
    modern = _at_least(version, 3, 2) if version else limits
    return Capabilities(
        flavour=flavour,
        version=version[:40],
        limits_metadata=limits,
        limits_queries=flavour == "prometheus" and limits and modern,
        retention_s=_retention(_field(_data(runtimeinfo), "storageRetention")),
    )


def _data(body: bytes | None) -> Any:
    try:
        answer = msgspec.json.decode(body) if body else None
    except (msgspec.DecodeError, RecursionError):
        return None
    return answer.get("data") if isinstance(answer, dict) else None


def _field(data: Any, name: str) -> Any:
    return data.get(name) if isinstance(data, dict) else None


def _warned(body: bytes | None) -> bool:
    """Whether the server says that it cut the list: one with a single label has the same list."""
    return body is not None and b'"warnings"' in body


def _flavour(data: Any) -> Flavour:
    if not isinstance(data, dict):
        return "unknown"
    application = str(data.get("application") or "").lower()
    if "mimir" in application:
        return "mimir"
    version = str(data.get("version") or "")
    if "revision" not in data:
        return "victoriametrics" if version == "2.24.0" else "unknown"
    return "thanos" if version.startswith("0.") else "prometheus"


def _at_least(version: str, major: int, minor: int) -> bool:
    found = _NUMBERS.match(version)
    return found is not None and (int(found.group(1)), int(found.group(2))) >= (major, minor)


def _retention(text: Any) -> float | None:
    """Read `15d` or `15d or 10GiB`: the time alone bounds how far back samples reach."""
    if not isinstance(text, str):
        return None
    try:
        return parse_duration(text.partition(" ")[0], "storageRetention") or None
    except BadRequest:
        return None
