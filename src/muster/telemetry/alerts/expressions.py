"""Forms of PromQL that several alerts share.

All alerts aggregate `by (cluster, ...)`, so that one ruler can evaluate them for several clusters: the label is absent
elsewhere, and then changes nothing. Node by node there would be thousands of alerts in an outage, so alerts about nodes
count them.
"""

from __future__ import annotations

import textwrap
from typing import Final

_LEADS: Final = "and on (cluster, job, instance) (muster_leader == 1)"


def of_leader(metric: str) -> str:
    """Select `metric` of the leading controller only: on a standby, gauges keep the values of its last term."""
    return f"({metric} {_LEADS})"


def grew(counter: str, window: str) -> str:
    """Select counters that grew within `window`. This includes the first increment of a series.

    `increase` does not see the first one: a series with labels begins with its first increment.
    """
    return f"(increase({counter}[{window}]) > 0 or ({counter} > 0 unless {counter} offset {window}))"


def agents_up(job: str) -> str:
    """Count the targets of a DaemonSet that could be scraped, also if there are none."""
    nodes = 'max by (cluster) (muster_informer_objects{job="controller", resource="nodes"})'
    return f'(count by (cluster) (up{{job="{job}"}} == 1) or 0 * {nodes})'


def lines(text: str) -> str:
    """Return a multi-line expression without its indentation."""
    return textwrap.dedent(text).strip()
