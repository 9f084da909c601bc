"""What runs in the pods of training jobs: modelled supervisors whose ranks take their time, save and fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from muster.kube.client import Client
from muster.kube.pod import Pod
from muster.sim.poller import Link
from muster.sim.supervisor import Work
from muster.sim.supervisors import SupervisorRuntime
from muster.sim.virtual.line import Line, Lines

STEP_S = 2.0
SAVED_STEPS = 3


class Ranks(SupervisorRuntime):
    """Ranks of all jobs of a run; a step is done only while every node of the attempt runs.

    Args:
        client: the kubelets'.
        lines: to the controller.
        stop_s: from SIGTERM to the last rank's end.
        runs_s: how long each job's work takes, by `namespace/name`.
        seed: of the jitter.
    """

    def __init__(self, client: Client, lines: Lines, *, stop_s: float, runs_s: Mapping[str, float], seed: int) -> None:
        super().__init__(client, now=lambda: datetime.fromtimestamp(lines.loop.now, UTC), work=Work(), seed=seed)
        self._lines, self._stop_s, self._runs_s = lines, stop_s, runs_s
        self.listeners: list[Callable[[], None]] = []
        """Called when the state of any supervisor has changed."""

    def connect(self, pod: Pod, env: Mapping[str, str]) -> Link:
        """A connection from the pod's node."""
        return Line(self._lines, pod.spec.node_name)

    def work_of(self, job: str) -> Work:
        """As long as the job was drawn to take."""
        steps = max(1, round(self._runs_s[job] / STEP_S))
        return Work(stop_s=self._stop_s, step_s=STEP_S, steps=steps, saved_steps=SAVED_STEPS)

    def together(self, job: str, attempt: int, nodes: int) -> bool:
        """Whether so many nodes of a job run this attempt."""
        return nodes == sum(one.state == "running" and one.attempt == attempt for one in self.of(job))

    def _changed(self) -> None:
        super()._changed()
        for listener in self.listeners:
            listener()
