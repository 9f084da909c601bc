"""The programs in the pods of training jobs: modelled supervisors whose ranks take their time, save and fail."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from fuzz.workload import JobSpec
from muster.kube.client import Client
from muster.kube.objects.pod import Pod
from muster.sim.poller import Link
from muster.sim.supervisor import Program, SimSupervisor, Work
from muster.sim.supervisors import SupervisorRuntime
from muster.sim.virtual.line import Line, Lines

STEP_S = 2.0
SAVED_STEPS = 3


def is_damaged(job: str, step: int) -> bool:
    """Returns whether this checkpoint of a job is damaged, if its ranks look at it. The first one never is."""
    return step > SAVED_STEPS and zlib.crc32(f"{job} {step}".encode()) % 2 == 0


class AttemptTruth:
    """What really became of an attempt.

    Attributes:
        launcher: as its directive says.
        nodes: that take part.
        slots: by node rank.
        ended: node ranks that ended well.
        reported: the controller acknowledged the last step.
        restored: the checkpoint from which the ranks of each node train, by node rank: path and step.
        contradiction: what two directives of it say differently; "" where they agree.
    """

    def __init__(self, launcher: str, nodes: int) -> None:
        self.launcher, self.nodes = launcher, nodes
        self.slots: dict[int, int] = {}
        self.ended = set[int]()
        self.restored: dict[int, tuple[str, int]] = {}
        self.reported = False
        self.contradiction = ""

    @property
    def unfinished(self) -> str:
        """Returns what is missing for a success; "" if nothing is."""
        if not self.reported:
            return "its last step was not reported"
        needed = {0} if self.launcher == "mpi" else set(range(self.nodes))
        missing = sorted(needed - self.ended)
        return f"node ranks {missing} of {self.nodes} ({self.launcher}) have not ended well" if missing else ""


class JobProgram(Program):
    """What is really so of a job's attempts, whatever its status says.

    Args:
        supervisors: of the job, as they are now.
    """

    def __init__(self, supervisors: Callable[[], list[SimSupervisor]]) -> None:
        self._supervisors = supervisors
        self.attempts: dict[int, AttemptTruth] = {}

    def begun(self, attempt: int, node_rank: int, slot: int, run: dict[str, Any]) -> None:
        """Note it, and whether it contradicts what others of the attempt were directed."""
        launcher, nodes = run["launcher"], int(run["nodes"])
        truth = self.attempts.setdefault(attempt, AttemptTruth(launcher, nodes))
        if (truth.launcher, truth.nodes) != (launcher, nodes):
            was = f"{truth.nodes} nodes with {truth.launcher}"
            truth.contradiction = f"attempt {attempt} began on {was}, and then on {nodes} with {launcher}"
        elif truth.slots.setdefault(node_rank, slot) != slot:
            was = f"slot {truth.slots[node_rank]}"
            truth.contradiction = f"node rank {node_rank} of attempt {attempt} began in {was} and then in slot {slot}"

    def together(self, attempt: int) -> bool:
        """Count them."""
        truth = self.attempts[attempt]
        running = sum(one.state == "running" and one.attempt == attempt for one in self._supervisors())
        return truth.nodes == running + len(truth.ended)

    def restored(self, attempt: int, node_rank: int, path: str, step: int) -> None:
        """Note it."""
        self.attempts[attempt].restored[node_rank] = path, step

    def reported(self, attempt: int) -> None:
        """Note it."""
        self.attempts[attempt].reported = True

    def ended(self, attempt: int, node_rank: int) -> None:
        """Note it."""
        self.attempts[attempt].ended.add(node_rank)

    def others_ended(self, attempt: int) -> bool:
        """Look whether all others did."""
        truth = self.attempts[attempt]
        return truth.ended >= set(range(1, truth.nodes))


class Ranks(SupervisorRuntime):
    """Ranks of all jobs of a run; a step is done only while every node of the attempt runs.

    Args:
        client: the kubelets'.
        lines: to the controller.
        stop_s: from SIGTERM to the last rank's end.
        jobs: by `namespace/name`.
        seed: of the jitter.
    """

    def __init__(self, client: Client, lines: Lines, *, stop_s: float, jobs: Mapping[str, JobSpec], seed: int) -> None:
        super().__init__(client, now=lambda: datetime.fromtimestamp(lines.loop.now, UTC), work=Work(), seed=seed)
        self._lines, self._stop_s, self._jobs = lines, stop_s, jobs
        self.programs: dict[str, JobProgram] = {}
        """By `namespace/name`, what really became of a job's attempts."""
        self.listeners: list[Callable[[], None]] = []
        """Called when the state of any supervisor has changed."""

    def connect(self, pod: Pod, env: Mapping[str, str]) -> Link:
        """A connection from the pod's node."""
        return Line(self._lines, pod.spec.node_name)

    def work_of(self, job: str) -> Work:
        """As long as the job was drawn to take, and on each node as long as its share says."""
        drawn = self._jobs[job]
        steps = max(1, round(drawn.runs_s / STEP_S))
        last = drawn.size - 1
        return Work(
            stop_s=self._stop_s,
            step_s=STEP_S,
            steps=steps,
            saved_steps=SAVED_STEPS,
            answers=drawn.answers,
            restores=drawn.restores,
            damaged=lambda step, node_rank: is_damaged(job, step) and node_rank == min(1, last),
            shares=drawn.rank_shares,
        )

    def program_of(self, job: str) -> Program:
        """Returns the knowledge of all attempts of the job."""
        if job not in self.programs:
            self.programs[job] = JobProgram(lambda: self.of(job))
        return self.programs[job]

    def _changed(self) -> None:
        super()._changed()
        for listener in self.listeners:
            listener()
