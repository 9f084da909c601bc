"""The mark of queries by which programs of Muster count series, so that they do not count as use."""

from __future__ import annotations

from typing import Final

PROBE_LABEL: Final = "__muster_probe__"
PROBE_MATCHER: Final = f'{PROBE_LABEL}=""'
"""A condition that every series meets, since none has this label. It marks a query in the query log of Prometheus."""
