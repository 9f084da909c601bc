"""Converts findings to the form in NodeHealth objects, and back."""

from __future__ import annotations

from datetime import UTC, datetime

from muster.api.node_health import COUNT_MAX, ObservedFinding
from muster.fleet.health.finding import Finding


def observed(finding: Finding) -> ObservedFinding:
    """Return the finding in the API's form: times to the microsecond, texts cut to the schema's limits."""
    return ObservedFinding(
        check=_text(finding.check, 63) or "unknown",
        component=_text(finding.component, 256),
        code=_text(finding.code, 128) or "unknown",
        count=min(max(1, finding.count), COUNT_MAX),
        first_time=datetime.fromtimestamp(finding.first_s, UTC),
        last_time=datetime.fromtimestamp(finding.last_s, UTC),
        message=_text(finding.message, 256),
    )


def _text(text: str, characters: int) -> str:
    """Replace what JSON cannot hold: file names and error texts may contain bytes that are not text."""
    return text[:characters].encode(errors="replace").decode()


def finding_of(seen: ObservedFinding) -> Finding:
    """Return the finding of an API object."""
    return Finding(
        check=seen.check,
        component=seen.component,
        code=seen.code,
        count=seen.count,
        first_s=seen.first_time.timestamp(),
        last_s=seen.last_time.timestamp(),
        message=seen.message,
    )
