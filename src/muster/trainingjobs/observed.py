"""Remembers when this process first saw each fact.

Time limits count from these times, never from timestamps of the API, because other machines' clocks may be hours off. A
new controller starts counting again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from muster.api.names import WORKER_CONTAINER
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod

Fact = Literal["seen", "bound", "started", "running", "terminating", "notReady"]
Seen = Mapping[tuple[str, Fact], float]
"""(pod UID or node name, fact) -> when it became true, seconds since the epoch."""


class Observed:
    """Facts about each job's pods and their nodes, by job UID."""

    def __init__(self) -> None:
        """Create an empty record."""
        self._jobs: dict[str, Seen] = {}

    def look(self, job_uid: str, pods: Iterable[Pod], nodes: Mapping[str, Node], now: float) -> Seen:
        """Returns since when each current fact has been true, and forgets facts that are no longer true."""
        before = self._jobs.get(job_uid, {})
        seen = {fact: before.get(fact, now) for fact in _facts(pods, nodes)}
        self._jobs[job_uid] = seen
        return seen

    def forget(self, job_uid: str) -> None:
        """Forget a deleted job."""
        self._jobs.pop(job_uid, None)


def worker_runs(pod: Pod) -> bool:
    """Returns whether the worker's process 1 has been started."""
    return any(
        status.name == WORKER_CONTAINER and status.state is not None and status.state.running is not None
        for status in pod.status.container_statuses
    )


def _facts(pods: Iterable[Pod], nodes: Mapping[str, Node]) -> Iterator[tuple[str, Fact]]:
    for pod in pods:
        yield pod.uid, "seen"
        if pod.spec.node_name:
            yield pod.uid, "bound"
        if pod.status.start_time is not None:
            yield pod.uid, "started"
        if worker_runs(pod):
            yield pod.uid, "running"
        if pod.terminating:
            yield pod.uid, "terminating"
    for name, node in nodes.items():
        if not node.ready:
            yield name, "notReady"
