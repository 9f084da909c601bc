"""The input of `decide`: one job, its pods, its Placement, its nodes, and the reports of supervisors."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal

import msgspec

from muster.api.placement import Placement
from muster.api.run_record import RunRecord
from muster.api.training_job import TrainingJob
from muster.api.training_job_status import CheckpointSource, Progress, RestoreProblem, StartForecast
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.trainingjobs.observed import Seen

SupervisorState = Literal["idle", "running", "stopping", "finished"]


class RankExit(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a rank or of the launcher (rank -1), as on the wire.

    `how` is one of the names in `supervisor/state/attempt.py`; `reason` says the same to people. `errno` (errno(3)) is
    set if `program` could not be executed.
    """

    attempt: int = 0
    rank: int | None = None
    code: int = 0
    signal: int = 0
    time: float = 0.0
    tail: tuple[str, ...] = ()
    how: str = ""
    reason: str = ""
    errno: int = 0
    program: str = ""


class RankTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A traceback that a rank printed in this attempt; as on the wire."""

    rank: int
    lines: tuple[str, ...] = ()


class IdleRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank whose process does not run, as on the wire. A newer supervisor may report states unknown here."""

    rank: int
    state: str


class Unwritable(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint folder that a node cannot write, or the data that it cannot read, as on the wire.

    Attributes:
        path: the folder or the URL.
        errno: why (errno(3)); Linux numbers. 0 for an object store.
        uid: the user whose write failed.
        reason: for an object store, the name of the SDK's error.
        message: for an object store, the problem and the fix as text.
        data: whether it is the URL of the training data.
    """

    path: str
    errno: int = 0
    uid: int = 0
    reason: str = ""
    message: str = ""
    data: bool = False


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A supervisor's last report. It is in memory only; supervisors report again to a new controller.

    Attributes:
        pod_uid: its pod.
        made_for: the attempt for which its pod was created.
        state: its state.
        attempt: the attempt that the state is about.
        state_at: when the controller first received that state for that attempt.
        address: its address for ranks of other nodes.
        shell_port: its remote shell.
        node_rank: its node rank in that attempt; -1 if not reported.
        idle: its ranks whose process does not run.
        traces: tracebacks that its ranks printed.
        exit: how the first rank that failed here ended, or the launcher.
        exit_at: when the controller received `exit`.
        silent_since: when its last poll ended without a new one; None while one is open.
        cut: that poll ended because the connection broke.
        looking: it has not reported yet which checkpoints it sees.
        looked: for each requested path, whether it exists, or None if that is unknown. The whole field is None until
            the supervisor has reported it.
        found: the newest confirmed checkpoint in the job's own folder; otherwise the one of spec.checkpoint.from.
        others: if nothing was found, the newest checkpoints of other jobs below spec.checkpoint.path.
        unwritable: the job's checkpoint folder, if the node cannot write it.
        cache_address: host and port of the node's cache for other nodes; "" without one.
        cache_expires: when its ticket for the cache expires, in seconds since the epoch; 0 without one.
    """

    pod_uid: str
    made_for: int = 0
    state: SupervisorState = "idle"
    attempt: int = 0
    state_at: float = 0.0
    address: str = ""
    shell_port: int = 0
    node_rank: int = -1
    idle: tuple[IdleRank, ...] = ()
    traces: tuple[RankTrace, ...] = ()
    exit: RankExit | None = None
    exit_at: float = 0.0
    silent_since: float | None = None
    cut: bool = False
    looking: bool = False
    looked: Mapping[str, bool | None] | None = None
    found: CheckpointSource | None = None
    others: tuple[CheckpointSource, ...] = ()
    unwritable: Unwritable | None = None
    cache_address: str = ""
    cache_expires: int = 0


class RestoreFailure(msgspec.Struct, frozen=True):
    """Why a node could not restore the attempt's checkpoint."""

    slot: int
    node: str
    reason: RestoreProblem
    message: str = ""


class Restoring(msgspec.Struct, frozen=True):
    """The nodes' reports about a checkpoint in an attempt: how many have verified it, and the first failure."""

    attempt: int
    path: str
    nodes: int = 0
    failure: RestoreFailure | None = None


class HardwareEvidence(msgspec.Struct, frozen=True):
    """Broken hardware on a node, from a condition or an Event."""

    node: str
    time: float
    message: str


class Refusal(msgspec.Struct, frozen=True):
    """The API server refused one of the pods because of a quota, admission or an invalid template."""

    reason: str
    message: str
    retry_at: float


class Wait(msgspec.Struct, frozen=True):
    """Why the scheduler has no nodes for a job: the typed reason and a sentence.

    Both are empty if the job does not wait.
    """

    reason: str = ""
    message: str = ""

    @property
    def text(self) -> str:
        """Both as one text, for the job's message."""
        return f"{self.message} [{self.reason}]"


CONTACT_TIMEOUT_S: Final = 10.0
"""A supervisor that is silent for this long is lost."""
CUT_TIMEOUT_S: Final = 3.0
"""The same after its connection broke, unless its node renews its Lease."""
SETTLE_S: Final = 5.0
"""Evidence of the same incident arrives within this time; no job fails permanently before."""
REJOIN_S: Final = 45.0
"""A new controller waits this long for supervisors to report."""
EXCLUSION_S: Final = 60.0


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """How long an attempt has not reported, computed by status/stalls.py.

    Attributes:
        attempt: the attempt.
        reported_at: the time of its newest report; None before the first.
        step: its newest step.
        seconds: how long it has not reported; only time in which the controller could receive reports counts.
        at: when this was counted, seconds since the epoch.
        from_: counting starts here; before, reports could not be received or may have been delayed.
    """

    attempt: int
    reported_at: datetime | None = None
    step: int | None = None
    seconds: float = 0.0
    at: float = 0.0
    from_: float = 0.0


class JobSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one job and its surroundings at one moment.

    Attributes:
        job: the newer of the cached job and our last write.
        pods: all its pods, also terminating and finished ones.
        placement: the scheduler's plan.
        nodes: nodes of its pods, of its newest fault, and excluded ones; a missing name means a deleted node.
        leases: when those nodes were last known to have renewed their Lease, if the controller read it.
        members: by pod UID.
        ended: slot -> attempt that ended well there, as reported by the supervisor of a pod that is gone.
        seen: since when each fact about its pods and nodes has been true, as this process saw it.
        run: the record of its newest attempt as this process wrote it; None if it wrote none.
        source: the job that spec.checkpoint.from names, until this job has started; None if it does not exist.
        progress: the newest report of the current attempt; None before the first.
        restoring: what its nodes report about the checkpoint that they restore; None if no node has asked.
        hardware: evidence about its nodes.
        waits_for: why the scheduler has no nodes for it; None if this leader has not heard a reason.
        forecast: when it is expected to start; None if the scheduler has not given this leader an estimate.
        leaving: its pods are being evicted from nodes that are drained.
        refusal: why the newest pod could not be created.
        gpu_counts: GPU count -> number of nodes that the job may use; looked up before an attempt that needs it.
        leading_since: when this controller began to answer supervisors.
        strained_at: when this controller was last too slow to hear all supervisors; 0 if never.
        contact_trusted: false while more than half of all supervisors are silent.
        quiet: for how long the attempt has reported nothing, as this process counted it; None while it does not run.
        progress_due: the newest progress may be written now.
        exclusion_s: a replacement pod that has waited this long may use an excluded node that is Ready again.
    """

    job: TrainingJob
    pods: tuple[Pod, ...] = ()
    placement: Placement | None = None
    nodes: Mapping[str, Node] = msgspec.field(default_factory=dict)
    leases: Mapping[str, float] = msgspec.field(default_factory=dict)
    members: Mapping[str, Member] = msgspec.field(default_factory=dict)
    ended: Mapping[int, int] = msgspec.field(default_factory=dict)
    seen: Seen = msgspec.field(default_factory=dict)
    run: RunRecord | None = None
    source: TrainingJob | None = None
    progress: Progress | None = None
    restoring: Restoring | None = None
    hardware: tuple[HardwareEvidence, ...] = ()
    waits_for: Wait | None = None
    forecast: StartForecast | None = None
    leaving: bool = False
    refusal: Refusal | None = None
    gpu_counts: Mapping[int, int] = msgspec.field(default_factory=dict)
    leading_since: float = 0.0
    strained_at: float = 0.0
    contact_trusted: bool = True
    quiet: Watched | None = None
    progress_due: bool = False
    exclusion_s: float = EXCLUSION_S
