"""TrainingJob: a gang of nodes that trains together, and restarts as a whole after a hardware fault."""

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
BadShards = Literal["Fail", "Skip"]

TESTED_WITHIN_MAX_H = 8760
"""A year. A larger limit would have no effect."""

DNS_LABEL = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
RESOURCE_NAME = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
QUANTITY = "^[0-9]+(\\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?$"
SHA256 = "^[0-9a-f]{64}$"
OBJECT_NAME = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
"""The name of a Secret (Kubernetes docs, "DNS Subdomain Names")."""
REGION = "^[A-Za-z0-9][-A-Za-z0-9_]*$"


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
"""The fields of a pod template's spec that CEL rules read. CEL cannot name unknown fields."""


class EnvVar(KubeStruct):
    """One environment variable, as in a container: a value, or a reference from which Kubernetes takes the value."""

    name: Annotated[str, Meta(min_length=1, description="Name of the variable.")]
    value: Annotated[str, Meta(description="Its value.")] = ""
    value_from: Annotated[
        dict[str, Any] | None,
        Meta(
            description="The source of the value, instead of value: secretKeyRef, configMapKeyRef, fieldRef or "
            "resourceFieldRef."
        ),
    ] = None


class CodeSource(KubeStruct):
    """The user's code, shipped beside the image: one ConfigMap, or an archive at a URL with its digest."""

    config_map: Annotated[
        str,
        Meta(
            description="Name of a ConfigMap in the job's namespace. Its key code.tar.gz is unpacked into the working "
            "directory."
        ),
    ] = ""
    url: Annotated[str, Meta(description="URL of a code.tar.gz; needs sha256.")] = ""
    sha256: Annotated[
        str,
        Meta(description="SHA-256 of the archive at url, in hex. The worker refuses an archive with another digest."),
    ] = ""


class Rdma(KubeStruct):
    """RDMA devices for each node."""

    resource: Annotated[
        str, Meta(pattern=RESOURCE_NAME, description="Extended resource of the RDMA device plugin, such as rdma/hca.")
    ]
    count: Annotated[int, Meta(ge=1, le=64, description="Devices per node.")] = 1


class CheckpointFrom(KubeStruct):
    """A checkpoint of another job, from which this job starts."""

    job: Annotated[
        str,
        Meta(
            description="Name of a job in the same namespace; this job starts from its newest confirmed checkpoint. "
            "If that job was deleted, its checkpoint is searched for below spec.checkpoint.path."
        ),
    ] = ""
    path: Annotated[
        str,
        Meta(
            max_length=4096,
            description="A checkpoint, a URL, or a job's folder of checkpoints. In a folder the newest confirmed "
            "checkpoint is used.",
        ),
    ] = ""


class StoreCredentials(KubeStruct):
    """A Secret with the credentials of an object store."""

    secret_name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=253,
            pattern=OBJECT_NAME,
            description="Name of a Secret in the job's namespace. Its keys are named like the usual environment "
            "variables, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. The pods mount it as a volume.",
        ),
    ]


_ENDPOINT_TEXT: Final = "URL of the store's service, such as http://minio:9000. If absent, the cloud's own."
_REGION_TEXT: Final = "Region of the bucket, if the store needs one."
_CREDENTIALS_TEXT: Final = "Credentials of the store. If absent, the pod's own identity is used (workload identity)."


class DataSpec(KubeStruct):
    """Where the program's training data is."""

    url: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=2048,
            description="URL of the data: s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH or file:///FOLDER.",
        ),
    ]
    endpoint: Annotated[str, Meta(max_length=2048, description=_ENDPOINT_TEXT)] = ""
    region: Annotated[str, Meta(max_length=64, description=_REGION_TEXT)] = ""
    credentials: Annotated[StoreCredentials | None, Meta(description=_CREDENTIALS_TEXT)] = None
    bad_shards: Annotated[
        BadShards,
        Meta(
            description="What happens if a shard cannot be read or is damaged. Fail: the program gets an error that "
            "names the shard. Skip: its samples are skipped and counted, and skipped again after a restart."
        ),
    ] = "Fail"


class CheckpointSpec(KubeStruct):
    """Where the program keeps its checkpoints."""

    path: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=4096,
            description="Folder or URL below which the job gets its own folder, NAME-UID (status.checkpointDir). The "
            "program receives that folder. Muster's SDK reads and writes folders and s3, gs and az URLs; a URL with "
            "another scheme or with a query is for the program alone.",
        ),
    ]
    endpoint: Annotated[str, Meta(max_length=2048, description=_ENDPOINT_TEXT)] = ""
    region: Annotated[str, Meta(max_length=64, description=_REGION_TEXT)] = ""
    credentials: Annotated[StoreCredentials | None, Meta(description=_CREDENTIALS_TEXT)] = None
    from_: Annotated[
        CheckpointFrom | None,
        Meta(
            description="The job or path from whose checkpoint this job starts. It is resolved once, at the first "
            "start. This job never removes that checkpoint."
        ),
    ] = field(default=None, name="from")


class MpiSpec(KubeStruct):
    """Settings of the launcher mpi."""

    extra_args: Annotated[tuple[str, ...], Meta(description="Further arguments for mpiexec, before the command.")] = ()
    remote_shell: Annotated[
        RemoteShell,
        Meta(
            description="How mpiexec reaches other nodes. supervisor: built in, nothing to install. sshd: the image's "
            "own OpenSSH server and client, with new keys for each attempt."
        ),
    ] = "supervisor"


MUTABLE_FIELDS: Final = frozenset(
    {
        "suspend",
        "priority",
        "restartable",
        "backoffLimit",
        "infrastructureLimit",
        "unknownLimit",
        "timeLimitSeconds",
        "ttlSecondsAfterFinished",
        "stall",
    }
)
"""Fields of the spec that may change while a job is active. All other fields can change only while the job is
suspended, as an attempt and its pods depend on them.
"""


class StallSpec(KubeStruct):
    """When a job counts as stalled, and what Muster then does."""

    after_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=10**9,
            description="Shortest time without a report after which an attempt is stalled. The limit is this time or "
            "stepTimes times the median time of a step, whichever is longer. It applies after the first step.",
        ),
    ] = 300
    step_times: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="Factor on the median time between two reported steps. See afterSeconds."),
    ] = 10
    first_step_seconds: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=10**9,
                description="An attempt that has not reported any step is stalled this long after its ranks began. If "
                "absent, such an attempt never counts as stalled.",
            ),
        ]
        | None
    ) = None
    action: Annotated[
        OnStall,
        Meta(
            description="Report: the controller records the stall in the status and in an Event. Restart: it also "
            "restarts the job, and charges the fault by the rules of docs/whose-fault.md."
        ),
    ] = "Report"


class TrainingJobSpec(KubeStruct):
    """What to run, on how many nodes, and how many failures to accept."""

    replicas: Annotated[
        int,
        Meta(ge=1, le=NODES_PER_GANG_MAX, description="Number of nodes. The job starts on all of them or not at all."),
    ]
    gpus_per_node: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=64,
                description="GPUs that the job uses on each node; 0 for a job without GPUs. If absent, the job uses "
                "all GPUs of a node. All nodes that it may use must then have the same number, which "
                "status.nodeUse records. With nodeSharing: Shared, the default is 0.",
            ),
        ]
        | None
    ) = None
    node_sharing: (
        Annotated[
            NodeSharing,
            Meta(
                description="Exclusive (the default): Muster places no other pods on the job's nodes, and all its "
                "nodes have the same number of GPUs. Shared: other jobs may use the rest of the nodes.",
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
            Meta(ge=1, le=256, description="Processes per node. If absent, one for each GPU; 1 without GPUs."),
        ]
        | None
    ) = None
    launcher: Annotated[
        Launcher,
        Meta(
            description="How ranks start. mpi: mpiexec on the first node starts the ranks on all nodes. torchrun: "
            "each node runs the program torchrun of the image, which starts its ranks. none: each node runs "
            "the command once per rank, for images without MPI and PyTorch."
        ),
    ] = "mpi"
    image: Annotated[
        str, Meta(description="Image of the worker container; it must contain python3 (3.8 or newer).")
    ] = ""
    command: Annotated[tuple[str, ...], Meta(description="The program that each rank runs.")] = ()
    args: Annotated[tuple[str, ...], Meta(description="Arguments of the program.")] = ()
    env: Annotated[tuple[EnvVar, ...], Meta(description="Environment of the worker container.")] = ()
    working_dir: Annotated[
        str, Meta(description="Working directory of the program. If absent, the folder of the code.")
    ] = ""
    code: Annotated[CodeSource | None, Meta(description="Code that is not part of the image.")] = None
    template: Annotated[
        dict[str, Any],
        Meta(
            description="A PodTemplateSpec with additions: volumes, tolerations, labels, node selectors. Fields that "
            "Muster sets take precedence. A container named worker is merged with the worker.",
            extra_json_schema={"properties": {"spec": _TEMPLATE_SPEC}},
        ),
    ] = field(default_factory=dict)
    priority: (
        Annotated[
            int,
            Meta(
                ge=-(2**31),
                le=1_000_000_000,
                description="Order in the queue among jobs; a job with a larger number goes first.",
            ),
        ]
        | None
    ) = None
    priority_class_name: Annotated[str, Meta(description="PriorityClass of the pods.")] = ""
    borrow: Annotated[
        bool,
        Meta(
            description="If true, the job may run on any team's nodes, at low priority (priorityClassName "
            "muster-borrower by default). When an owner needs them, the whole job saves a checkpoint, "
            "stops and waits again, without a charge to any budget."
        ),
    ] = False
    backoff_limit: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="Maximum number of restarts after faults of the program. The next such fault fails the job.",
        ),
    ] = 3
    infrastructure_limit: Annotated[
        int,
        Meta(
            ge=0,
            le=100_000,
            description="Maximum number of restarts after faults of the infrastructure. The next such fault fails "
            "the job.",
        ),
    ] = 50
    unknown_limit: Annotated[
        int,
        Meta(
            ge=0,
            le=1000,
            description="Maximum number of restarts after unexplained faults. The next such fault fails the job.",
        ),
    ] = 5
    data: Annotated[DataSpec | None, Meta(description="Where the training data is.")] = None
    checkpoint: Annotated[CheckpointSpec | None, Meta(description="Where checkpoints are kept.")] = None
    time_limit_seconds: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=10**9,
                description="The job fails this long after its first start. If absent, there is no limit.",
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
                description="The job uses only nodes that passed their tests within this number of hours before the "
                "gang is placed. Needs preflight. If absent, any trusted node can be used.",
            ),
        ]
        | None
    ) = None
    restartable: (
        Annotated[
            bool,
            Meta(
                description="Whether the job loses little if it is stopped and started again. If true, it may start "
                "on nodes that are reserved for a job before it (docs/scheduling.md). If absent, it may do so once "
                "it has reported a checkpoint. If false, never."
            ),
        ]
        | None
    ) = None
    suspend: Annotated[
        bool,
        Meta(
            description="true stops the job and gives its nodes back. false starts it again from its last checkpoint."
        ),
    ] = False
    no_spare: Annotated[
        NoSpare,
        Meta(
            description="What happens if the job loses a node and no other node is free. Wait: the job keeps its "
            "healthy nodes and waits for another one. (If an earlier job in the queue lost nodes too, the job may have "
            "to give its nodes to that job.) Shrink: the job continues without the node, if at least minReplicas "
            "nodes are left. Requeue: the job gives all nodes back and waits in the queue."
        ),
    ] = "Wait"
    min_replicas: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=NODES_PER_GANG_MAX,
                description="With noSpare: Shrink, the smallest number of nodes with which the job continues. With "
                "fewer nodes, it waits. "
                f"At most {LEFT_OUT_MAX} fewer than replicas. The first start always needs all replicas.",
            ),
        ]
        | None
    ) = None
    shared_memory: Annotated[
        str, Meta(description="Size of /dev/shm, a quantity such as 64Gi. If absent, half of the node's memory.")
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
            Meta(ge=0, le=10**9, description="The job is deleted this long after its end. If absent, it is kept."),
        ]
        | None
    ) = None
    mpi: Annotated[MpiSpec | None, Meta(description="Settings of the launcher mpi.")] = None
    stall: Annotated[
        StallSpec | None, Meta(description="When the job counts as stalled, and what Muster then does.")
    ] = None


class TrainingJob(KubeObject, kw_only=True):
    """A gang of nodes that trains together, and restarts as a whole after a hardware fault."""

    RESOURCE: ClassVar[Resource] = Resource(
        group=GROUP, version=VERSION, plural="trainingjobs", kind="TrainingJob", namespaced=True
    )

    spec: TrainingJobSpec
    status: TrainingJobStatus = field(default_factory=TrainingJobStatus)

    @property
    def gpus(self) -> int:
        """GPUs that the job uses on each node: the recorded number, or the number in the spec before that."""
        use = self.status.node_use
        return use.gpus_per_node if use is not None else self.spec.gpus_per_node or 0

    @property
    def ranks(self) -> int:
        """Ranks per node. If the spec has no number, one for each GPU, and one on a node without GPUs."""
        return self.spec.ranks_per_node if self.spec.ranks_per_node is not None else max(1, self.gpus)

    @property
    def exclusive(self) -> bool:
        """Returns whether the job has its nodes to itself. A job that began before Muster recorded this shares them."""
        return self.status.node_use is not None and self.status.node_use.sharing == "Exclusive"
