"""TrainingJob: one gang of whole nodes that trains together, survives hardware and restarts as one."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta, field

from muster.api.names import GROUP, NODES_PER_GANG_MAX, VERSION
from muster.api.run_record import FixedSpec, HandedCheckpoint, RunRecord
from muster.kube.meta import Condition, KubeObject, Resource
from muster.kube.struct import KubeStruct

Launcher = Literal["mpi", "torchrun", "none"]
RemoteShell = Literal["supervisor", "sshd"]
Phase = Literal["Pending", "Starting", "Running", "Restarting", "Suspended", "Stopping", "Succeeded", "Failed"]
Cause = Literal["user", "infrastructure", "unknown"]
NoSpare = Literal["Wait", "Shrink", "Requeue"]
NodeSharing = Literal["Exclusive", "Shared"]
OnStall = Literal["Report", "Restart"]
RankTrouble = Literal["stopped", "zombie", "gone"]

TESTED_WITHIN_MAX_H = 8760
"""A year: who asks for less fresh tests asks for nothing."""
CHECKPOINTS_MAX = 5
"""Confirmed checkpoints listed in a job's status."""
LEFT_OUT_MAX = 256
"""Nodes that a job may go on without: their slots are listed in its status, which is bounded."""
IDLE_RANKS_MAX = 16
"""Ranks that do not run, listed in the status."""

DNS_LABEL = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
RESOURCE_NAME = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
QUANTITY = "^[0-9]+(\\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?$"
SHA256 = "^[0-9a-f]{64}$"


_ANY_OBJECT: Final = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_TEMPLATE_SPEC: Final = {
    **_ANY_OBJECT,
    "description": "A PodSpec.",
    "properties": {
        "resourceClaims": {
            "type": "array",
            "items": _ANY_OBJECT,
            "maxItems": 64,
            "description": "Not supported yet: claims of DRA drivers (docs/scheduling.md).",
        }
    },
}
"""Of a pod template's spec, what a rule reads: unknown fields cannot be named in CEL."""


class EnvVar(KubeStruct):
    """One environment variable, as in a container: a value, or where Kubernetes finds it."""

    name: Annotated[str, Meta(min_length=1, description="Name of the variable.")]
    value: Annotated[str, Meta(description="Its value.")] = ""
    value_from: Annotated[
        dict[str, Any] | None,
        Meta(
            description="Where the value comes from instead: secretKeyRef, configMapKeyRef, fieldRef, resourceFieldRef."
        ),
    ] = None


class CodeSource(KubeStruct):
    """The user's code, shipped beside the image: one ConfigMap, or an archive at a URL with its digest."""

    config_map: Annotated[
        str,
        Meta(
            description="ConfigMap in the job's namespace whose key code.tar.gz is unpacked into the working directory."
        ),
    ] = ""
    url: Annotated[str, Meta(description="Where a code.tar.gz is fetched from; needs sha256.")] = ""
    sha256: Annotated[str, Meta(description="SHA-256 of the archive at url, in hex; anything else is refused.")] = ""


class Rdma(KubeStruct):
    """RDMA devices for each node."""

    resource: Annotated[
        str, Meta(pattern=RESOURCE_NAME, description="Extended resource of the RDMA device plugin, such as rdma/hca.")
    ]
    count: Annotated[int, Meta(ge=1, le=64, description="Devices per node.")] = 1


class CheckpointFrom(KubeStruct):
    """Another job's checkpoint, from which a job starts."""

    job: Annotated[
        str,
        Meta(
            description="A job in the same namespace, also one that was deleted: its newest confirmed checkpoint. That "
            "of a deleted job is looked for below spec.checkpoint.path."
        ),
    ] = ""
    path: Annotated[
        str,
        Meta(description="A checkpoint, a job's folder of checkpoints (the newest confirmed one in it), or a URL."),
    ] = ""


class CheckpointSpec(KubeStruct):
    """Where the program keeps its checkpoints."""

    path: Annotated[
        str,
        Meta(
            min_length=1,
            description="Folder or URL below which the job gets its own, NAME-UID (status.checkpointDir). The program "
            "is given that one. Muster does not read URLs.",
        ),
    ]
    from_: Annotated[
        CheckpointFrom | None,
        Meta(
            description="What the job starts from, a job or a path; resolved once, when it first starts. It is never "
            "removed by this job."
        ),
    ] = field(default=None, name="from")


class MpiSpec(KubeStruct):
    """What concerns the launcher mpi only."""

    extra_args: Annotated[tuple[str, ...], Meta(description="Further arguments for mpiexec, before the command.")] = ()
    remote_shell: Annotated[
        RemoteShell,
        Meta(
            description="What mpiexec reaches other nodes through: supervisor (built in, nothing to install) or sshd "
            "(the image's own OpenSSH server and client, with keys that each attempt has for itself)."
        ),
    ] = "supervisor"


MUTABLE_FIELDS: Final = frozenset(
    {
        "suspend",
        "priority",
        "backoffLimit",
        "infrastructureLimit",
        "unknownLimit",
        "timeLimitSeconds",
        "ttlSecondsAfterFinished",
        "stall",
    }
)
"""Fields of the spec that may change while a job is active. Every other one needs a suspended job: an attempt depends
on it, and its pods are made from it."""


class StallSpec(KubeStruct):
    """When a job that reports steps counts as stalled, and what happens then."""

    after_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=10**9,
            description="Once an attempt has reported a step, it is stalled when it reports nothing for so long, and "
            "for stepTimes times the usual time of a step.",
        ),
    ] = 300
    step_times: Annotated[
        int, Meta(ge=1, le=1_000_000, description="How many times the median time between two reported steps.")
    ] = 10
    first_step_seconds: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=10**9,
                description="An attempt that has not reported a step yet is stalled so long after its ranks began. "
                "Without this field such an attempt is not judged.",
            ),
        ]
        | None
    ) = None
    action: Annotated[
        OnStall,
        Meta(
            description="Report says so in the status and in an Event. Restart also ends the attempt, charged as "
            "docs/whose-fault.md says."
        ),
    ] = "Report"


class TrainingJobSpec(KubeStruct):
    """What to run, on how many whole nodes, and how much failure to accept."""

    replicas: Annotated[
        int, Meta(ge=1, le=NODES_PER_GANG_MAX, description="Whole nodes the gang needs. All of them or none are used.")
    ]
    gpus_per_node: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=64,
                description="GPUs that each node gives; 0 for a job without GPUs. Where not given, all GPUs of a node: "
                "the nodes that the job may use must then have one count, which status.nodeUse records. With "
                "nodeSharing: Shared it is 0 where not given.",
            ),
        ]
        | None
    ) = None
    node_sharing: (
        Annotated[
            NodeSharing,
            Meta(
                description="Exclusive, where not given: Muster places nothing else on the job's nodes, and the gang "
                "never mixes nodes of different GPU counts. Shared: other jobs may use what this one leaves of its "
                "nodes.",
            ),
        ]
        | None
    ) = None
    gpu_resource: Annotated[str, Meta(pattern=RESOURCE_NAME, description="Extended resource that counts GPUs.")] = (
        "nvidia.com/gpu"
    )
    ranks_per_node: (
        Annotated[
            int,
            Meta(ge=1, le=256, description="Processes per node; as many as GPUs where not given, 1 without GPUs."),
        ]
        | None
    ) = None
    launcher: Annotated[
        Launcher,
        Meta(
            description="How ranks start: mpi (mpiexec on the first node reaches the others), torchrun (its "
            "environment, one process per rank on each node) or none (the command once per rank on each node)."
        ),
    ] = "mpi"
    image: Annotated[str, Meta(description="Image of the worker container; needs python3 (3.8+) in it.")] = ""
    command: Annotated[tuple[str, ...], Meta(description="The program each rank runs.")] = ()
    args: Annotated[tuple[str, ...], Meta(description="Its arguments.")] = ()
    env: Annotated[tuple[EnvVar, ...], Meta(description="Environment of the worker container.")] = ()
    working_dir: Annotated[
        str, Meta(description="Where the program starts; the folder of the code where not given.")
    ] = ""
    code: Annotated[CodeSource | None, Meta(description="Code shipped beside the image.")] = None
    template: Annotated[
        dict[str, Any],
        Meta(
            description="A PodTemplateSpec merged under what Muster writes: volumes, tolerations, labels, node "
            "selectors. A container named worker in it is merged with the worker.",
            extra_json_schema={"properties": {"spec": _TEMPLATE_SPEC}},
        ),
    ] = field(default_factory=dict)
    priority: (
        Annotated[
            int,
            Meta(ge=-(2**31), le=1_000_000_000, description="Order in the queue among jobs; larger goes first."),
        ]
        | None
    ) = None
    priority_class_name: Annotated[str, Meta(description="PriorityClass of the pods.")] = ""
    borrow: Annotated[
        bool,
        Meta(
            description="Runs on any team's nodes, at low priority (priorityClassName muster-borrower by "
            "default), until their owners need them. Then the whole job stops after a last checkpoint and waits "
            "again, without a charge to any budget."
        ),
    ] = False
    backoff_limit: Annotated[
        int, Meta(ge=0, le=1000, description="Restarts after faults of the program; the next one fails the job.")
    ] = 3
    infrastructure_limit: Annotated[
        int,
        Meta(ge=0, le=100_000, description="Restarts after faults of the infrastructure; the next one fails the job."),
    ] = 50
    unknown_limit: Annotated[
        int, Meta(ge=0, le=1000, description="Restarts after unexplained faults; the next one fails the job.")
    ] = 5
    checkpoint: Annotated[CheckpointSpec | None, Meta(description="Where checkpoints are kept.")] = None
    time_limit_seconds: (
        Annotated[
            int,
            Meta(
                ge=1, le=10**9, description="The job fails this long after its first start. No limit where not given."
            ),
        ]
        | None
    ) = None
    tested_within_hours: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=TESTED_WITHIN_MAX_H,
                description="Only nodes that passed their tests within so many hours before the gang is placed. Needs "
                "preflight; whatever its last test, a trusted node will do where not given.",
            ),
        ]
        | None
    ) = None
    suspend: Annotated[
        bool,
        Meta(
            description="True stops the job and gives its nodes back; false starts it again from its last checkpoint."
        ),
    ] = False
    no_spare: Annotated[
        NoSpare,
        Meta(
            description="What a job does that lost a node while no other one is free: Wait keeps its healthy nodes "
            "until there is one, unless an earlier job that lost nodes too needs them; Shrink runs without it while "
            "minReplicas nodes are left; Requeue gives all of them back and waits for its turn."
        ),
    ] = "Wait"
    min_replicas: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=NODES_PER_GANG_MAX,
                description="With noSpare: Shrink the fewest nodes the job runs with after it lost some; below that "
                f"it waits. At most {LEFT_OUT_MAX} fewer than replicas. It always starts with replicas.",
            ),
        ]
        | None
    ) = None
    shared_memory: Annotated[
        str, Meta(description="Size of /dev/shm, a quantity such as 64Gi. Half of the node's memory where not given.")
    ] = ""
    rdma: Annotated[Rdma | None, Meta(description="RDMA devices for each node.")] = None
    ipc_lock: Annotated[bool, Meta(description="Gives the worker the capability IPC_LOCK, which RDMA needs.")] = False
    host_network: Annotated[bool, Meta(description="Runs the pods in their node's network.")] = False
    nccl_env: Annotated[
        dict[str, str], Meta(description="NCCL settings over Muster's defaults; an empty value removes a default.")
    ] = field(default_factory=dict)
    stop_grace_seconds: Annotated[
        int, Meta(ge=0, le=86_400, description="Time between SIGTERM and SIGKILL when ranks are stopped.")
    ] = 30
    ttl_seconds_after_finished: (
        Annotated[
            int,
            Meta(ge=0, le=10**9, description="The job is deleted this long after it ended. Kept where not given."),
        ]
        | None
    ) = None
    mpi: Annotated[MpiSpec | None, Meta(description="What concerns the launcher mpi only.")] = None
    stall: Annotated[StallSpec | None, Meta(description="When the job counts as stalled, and what happens then.")] = (
        None
    )


class NodeUse(KubeStruct):
    """How the job uses its nodes. Decided once, before the first pod, and kept through restarts."""

    sharing: Annotated[NodeSharing, Meta(description="Whether the job has its nodes to itself.")] = "Shared"
    gpus_per_node: Annotated[int, Meta(ge=0, description="GPUs that each node gives.")] = 0
    node_gpus: Annotated[
        int | None,
        Meta(description="GPU count of the nodes that the gang may use; any count where not given."),
    ] = None


class Restarts(KubeStruct):
    """Restarts so far, by whose fault they were."""

    user: Annotated[int, Meta(description="The program's own; bounded by spec.backoffLimit.")] = 0
    infrastructure: Annotated[
        int, Meta(description="Nodes, network, evictions; bounded by spec.infrastructureLimit.")
    ] = 0
    unknown: Annotated[int, Meta(description="Unexplained; bounded by spec.unknownLimit.")] = 0
    total: Annotated[int, Meta(description="All of them.")] = 0


class Backoff(KubeStruct):
    """Faults of the program in a row, and the pause before the next attempt."""

    failures: Annotated[
        int, Meta(description="Faults charged to the program in a row, while no attempt got further than those before.")
    ] = 0
    until: Annotated[
        datetime | None, Meta(description="The next attempt begins no earlier: 10 s, doubled each time, at most 6 min.")
    ] = None


class Progress(KubeStruct):
    """The program's newest report; written at a bounded pace, so a little behind."""

    step: Annotated[int, Meta(description="The newest step.")] = 0
    total_steps: Annotated[int | None, Meta(description="Steps in all, where the program said so.")] = None
    metrics: Annotated[dict[str, float], Meta(description="Its newest metrics, such as loss.")] = field(
        default_factory=dict
    )
    time: Annotated[datetime | None, Meta(description="When it said so.")] = None
    attempt: Annotated[int, Meta(description="The attempt that said so.")] = 0
    step_seconds: Annotated[
        float | None, Meta(description="Median time between two reported steps, over the newest ones.")
    ] = None


class Quiet(KubeStruct):
    """For how long an attempt has reported nothing. Counted only while the controller could have heard it."""

    attempt: Annotated[int, Meta(description="The attempt.")] = 0
    step: Annotated[int | None, Meta(description="Its newest step; absent if it has not reported one.")] = None
    seconds: Annotated[float, Meta(description="The length, when it was last written.")] = 0.0


class Stall(KubeStruct):
    """The running attempt makes no progress."""

    attempt: Annotated[int, Meta(description="The attempt.")] = 0
    since: Annotated[datetime | None, Meta(description="When it last reported, or when its ranks began.")] = None
    step: Annotated[int | None, Meta(description="Its newest step; absent if it has not reported one.")] = None
    slot: Annotated[int, Meta(description="The slot that message speaks of, or the first one.")] = 0
    limit_seconds: Annotated[float, Meta(description="How long a step may take, by spec.stall.")] = 0.0
    message: Annotated[
        str, Meta(description="What is known: ranks that do not run, the last lines of a traceback.")
    ] = ""


class RankState(KubeStruct):
    """A rank whose process does not run, although its attempt does."""

    rank: Annotated[int, Meta(description="The rank.")]
    state: Annotated[RankTrouble, Meta(description="stopped (SIGSTOP, a debugger), zombie or gone.")]
    slot: Annotated[int, Meta(description="The slot it belongs to.")] = 0
    node: Annotated[str, Meta(description="The node of that slot.")] = ""


class CheckpointStatus(KubeStruct):
    """The newest checkpoint that was reported complete."""

    path: Annotated[str, Meta(description="Where it lies.")]
    step: Annotated[int, Meta(description="The step it holds.")] = 0
    attempt: Annotated[int, Meta(description="The attempt that wrote it.")] = 0
    time: Annotated[datetime | None, Meta(description="When it was reported.")] = None


class CheckpointSource(KubeStruct):
    """The checkpoint that spec.checkpoint.from named."""

    job: Annotated[str, Meta(description="The job that wrote it, where that is known.")] = ""
    uid: Annotated[str, Meta(description="UID of that job.")] = ""
    path: Annotated[str, Meta(description="Where it lies. Empty until a node has looked for it.")] = ""
    step: Annotated[int, Meta(description="The step it holds.")] = 0


class Timeline(KubeStruct):
    """A fault and the way back to useful work, stage by stage."""

    fault: Annotated[datetime | None, Meta(description="It happened.")] = None
    detected: Annotated[datetime | None, Meta(description="The controller knew.")] = None
    stopped: Annotated[datetime | None, Meta(description="All healthy ranks had stopped.")] = None
    backoff: Annotated[
        datetime | None, Meta(description="The pause after faults of the program in a row was over.")
    ] = None
    placed: Annotated[datetime | None, Meta(description="Every slot had a node again.")] = None
    ready: Annotated[datetime | None, Meta(description="Every supervisor had joined.")] = None
    running: Annotated[datetime | None, Meta(description="The ranks were directed to run.")] = None
    useful: Annotated[datetime | None, Meta(description="The first step beyond the step at the fault.")] = None


class Fault(KubeStruct):
    """One incident that ended an attempt, and the cause it was charged to."""

    attempt: Annotated[int, Meta(description="The attempt it ended.")]
    slot: Annotated[int, Meta(description="The slot that failed first.")]
    node: Annotated[str, Meta(description="The node that held the slot.")] = ""
    cause: Annotated[Cause, Meta(description="Whose budget it is charged to.")] = "unknown"
    rule: Annotated[str, Meta(description="The row of docs/whose-fault.md that decided.")] = ""
    message: Annotated[str, Meta(description="What happened, with the last lines of the rank that failed first.")] = ""
    time: Annotated[datetime | None, Meta(description="When it happened.")] = None
    steps_lost: Annotated[int | None, Meta(description="Steps done since the newest checkpoint, to be done again.")] = (
        None
    )
    step: Annotated[int | None, Meta(description="The newest step reported before it.")] = None
    slots: Annotated[int, Meta(description="Slots that were replaced because of it.")] = 0
    checkpoint: Annotated[
        HandedCheckpoint | None,
        Meta(
            description="The checkpoint that its attempt began from, if the attempt reported neither a step nor a "
            "checkpoint; kept for the newest fault. If it is gone, the program may not have found it."
        ),
    ] = None
    timeline: Annotated[Timeline | None, Meta(description="The way back to useful work.")] = None


class TrainingJobStatus(KubeStruct):
    """The state of the job. At most 16 KB."""

    observed_generation: Annotated[int, Meta(description="The generation of spec this status speaks of.")] = 0
    phase: Annotated[Phase, Meta(description="Where the job is in its life.")] = "Pending"
    conditions: Annotated[
        tuple[Condition, ...],
        Meta(
            description="Admitted (every slot has a node; else why not, in the scheduler's typed reason), Running, "
            "Complete, Failed, Suspended, each with its reason."
        ),
    ] = ()
    attempt: Annotated[
        int,
        Meta(
            description="Number of the current attempt; what comes from an older one is refused. "
            "Where a limit ended the job, the number of the attempt that did not come."
        ),
    ] = 0
    ran_attempt: Annotated[int, Meta(description="Number of the newest attempt whose ranks were directed to run.")] = 0
    ready_slots: Annotated[int, Meta(description="Slots whose supervisor has joined.")] = 0
    node_use: Annotated[
        NodeUse | None,
        Meta(
            description="How the job uses its nodes. Not given for a job that began before Muster recorded it: Shared."
        ),
    ] = None
    size: Annotated[
        int, Meta(description="Nodes of the current attempt: fewer than spec.replicas while it runs without some.")
    ] = 0
    left_out: Annotated[
        tuple[int, ...],
        Meta(max_length=LEFT_OUT_MAX, description="Slots the current attempt runs without (noSpare: Shrink)."),
    ] = ()
    fixed_spec: Annotated[
        FixedSpec | None,
        Meta(description="The spec that the job runs by since it became active. Edits of the spec do not change it."),
    ] = None
    run: Annotated[
        RunRecord | None, Meta(description="What the running attempt depends on, written when it began.")
    ] = None
    restarts: Annotated[Restarts | None, Meta(description="Restarts so far, by whose fault they were.")] = None
    backoff: Annotated[
        Backoff | None, Meta(description="Whether the program fails again and again, and until when it is held.")
    ] = None
    preemptions: Annotated[
        int,
        Meta(description="How often its nodes were taken back for other jobs; no budget limits it."),
    ] = 0
    progress: Annotated[Progress | None, Meta(description="What the program said last.")] = None
    checkpoint_dir: Annotated[
        str,
        Meta(
            description="The job's own folder or URL for checkpoints, below spec.checkpoint.path; fixed when the job "
            "first starts. Empty where the job began under an earlier version: its folder is the path itself."
        ),
    ] = ""
    checkpoint_source: Annotated[
        CheckpointSource | None, Meta(description="The checkpoint of another job from which this one started.")
    ] = None
    checkpoints: Annotated[
        tuple[CheckpointStatus, ...],
        Meta(
            max_length=CHECKPOINTS_MAX,
            description="The newest confirmed checkpoints, newest first. If one is gone, the next attempt starts from "
            "the next older one. Attempt 0: another job's, from spec.checkpoint.from.",
        ),
    ] = ()
    quiet: Annotated[
        Quiet | None, Meta(description="How long the attempt has reported nothing; written at long intervals.")
    ] = None
    stall: Annotated[Stall | None, Meta(description="Why the attempt counts as stalled; absent if it does not.")] = None
    idle_ranks: Annotated[
        tuple[RankState, ...],
        Meta(max_length=IDLE_RANKS_MAX, description="Ranks whose process does not run, although the attempt does."),
    ] = ()
    last_checkpoint: Annotated[CheckpointStatus | None, Meta(description="What a restart resumes from.")] = None
    faults: Annotated[tuple[Fault, ...], Meta(max_length=8, description="The newest faults, newest last.")] = ()
    excluded_nodes: Annotated[
        tuple[str, ...], Meta(max_length=32, description="Nodes that replacements keep away from, newest last.")
    ] = ()
    time_to_useful_seconds: Annotated[
        float | None, Meta(description="From the newest fault to the first step beyond it.")
    ] = None
    slots_kept: Annotated[int | None, Meta(description="Slots that kept their pod in the newest restart.")] = None
    start_time: Annotated[datetime | None, Meta(description="When the ranks first ran.")] = None
    completion_time: Annotated[datetime | None, Meta(description="When the job ended.")] = None
    message: Annotated[str, Meta(description="One line for people: what the job does or waits for.")] = ""


class TrainingJob(KubeObject, kw_only=True):
    """One gang of whole nodes that trains together, survives hardware and restarts as one."""

    RESOURCE: ClassVar[Resource] = Resource(
        group=GROUP, version=VERSION, plural="trainingjobs", kind="TrainingJob", namespaced=True
    )

    spec: TrainingJobSpec
    status: TrainingJobStatus = field(default_factory=TrainingJobStatus)

    @property
    def gpus(self) -> int:
        """GPUs that each node gives: as recorded before the first pod, else as the spec says."""
        use = self.status.node_use
        return use.gpus_per_node if use is not None else self.spec.gpus_per_node or 0

    @property
    def ranks(self) -> int:
        """Ranks per node: as the spec says, else one for each GPU, and one on a node without GPUs."""
        return self.spec.ranks_per_node if self.spec.ranks_per_node is not None else max(1, self.gpus)

    @property
    def exclusive(self) -> bool:
        """Returns whether the job has its nodes to itself. A job that began before this was recorded shares them."""
        return self.status.node_use is not None and self.status.node_use.sharing == "Exclusive"
