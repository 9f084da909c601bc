"""TrainingJob: one gang of whole nodes that trains together, survives hardware and restarts as one."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta, field

from muster.api.names import GROUP, NODES_PER_GANG_MAX, VERSION
from muster.api.training_job_status import LEFT_OUT_MAX, NodeSharing, TrainingJobStatus
from muster.kube.objects.meta import KubeObject, Resource
from muster.kube.objects.struct import KubeStruct

Launcher = Literal["mpi", "torchrun", "none"]
RemoteShell = Literal["supervisor", "sshd"]
NoSpare = Literal["Wait", "Shrink", "Requeue"]
OnStall = Literal["Report", "Restart"]

TESTED_WITHIN_MAX_H = 8760
"""A year: who asks for less fresh tests asks for nothing."""

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
