"""Forms of PromQL that the panels share.

Every selector names one metric and has the dashboard's variables. Every expression aggregates, so that its result does
not grow with the number of nodes.
"""

from __future__ import annotations

from typing import Final

IN_CLUSTER: Final = 'cluster=~"$cluster"'
IN_NAMESPACE: Final = f'{IN_CLUSTER},namespace=~"$namespace"'
PROCESSES: Final = 'job=~"controller|admission|readcache"'
"""Processes with a few replicas in a cluster. Agents export the same metrics, on each node."""
OURS: Final = 'job=~"controller|admission|readcache|readcache-node|agent|network|cache|guard"'
"""All processes of Muster, by the labels that the chart's monitors give them."""
LEASE: Final = 'lease="muster-controller"'
_TARGET: Final = "cluster, job, instance"


def series(metric: str, *matchers: str) -> str:
    """Select a metric of Muster's own processes."""
    return f"{metric}{{{','.join((IN_NAMESPACE, *matchers))}}}"


def traffic(metric: str, *matchers: str) -> str:
    """Select a metric of the network agent whose labels `namespace` and `job` name a training job."""
    return f"{metric}{{{','.join((IN_CLUSTER, *matchers))}}}"


def led(metric: str, *by: str, matchers: tuple[str, ...] = ()) -> str:
    """Return a gauge of the leading controller, summed by labels.

    On a standby, gauges keep the values of its last term. While leadership changes, two processes may export.
    """
    leads = f"{series('muster_leader', LEASE)} == 1"
    one = ", ".join(("cluster", "namespace", *by))
    return f"sum{_by(*by)} (max by ({one}) ({series(metric, *matchers)} and on ({_TARGET}) ({leads})))"


def replicated(metric: str, *by: str, matchers: tuple[str, ...] = ()) -> str:
    """Return a gauge that every replica knows, once for each cluster, summed by labels."""
    one = ", ".join(("cluster", "namespace", *by))
    return f"sum{_by(*by)} (max by ({one}) ({series(metric, *matchers)}))"


def rate(selector: str, *by: str) -> str:
    """Return increments per second, by labels."""
    return f"sum{_by(*by)} (rate({selector}[$__rate_interval]))"


def grown(selector: str, *by: str) -> str:
    """Return by how much counters grew within the dashboard's time range, by labels.

    `increase` does not see the first increment of a series that begins with it.
    """
    return f"sum{_by(*by)} (({selector} unless {selector} offset $__range) or increase({selector}[$__range]))"


def quantile(share: float, bucket: str, *by: str, window: str = "$__rate_interval") -> str:
    """Return a quantile of a histogram, by labels. Without observations in the window it is not a number."""
    return f"histogram_quantile({share}, sum by ({', '.join((*by, 'le'))}) (rate({bucket}[{window}])))"


def quantile_of_range(share: float, bucket: str, *by: str) -> str:
    """Return a quantile of all observations in the dashboard's time range, by labels. For rare observations."""
    return f"histogram_quantile({share}, {grown(bucket, *by, 'le')})"


def share(part: str, whole: str) -> str:
    """Return part / whole; 0 where the whole is 0."""
    return f"({part}) / (({whole}) > 0) or 0 * ({whole})"


def top(count: int, expression: str) -> str:
    """Return the largest values only."""
    return f"topk({count}, {expression})"


def or_zero(expression: str) -> str:
    """Return 0 without a sample. Only for counts where the absence of a series means that nothing happened."""
    return f"{expression} or vector(0)"


def _by(*labels: str) -> str:
    return f" by ({', '.join(labels)})" if labels else ""
