"""Containers of a pod: environment, probes, resources and status."""

from __future__ import annotations

from datetime import datetime

import msgspec

from muster.kube.objects.struct import KubeStruct
from muster.kube.objects.volume import ObjectFieldSelector, ResourceFieldSelector, VolumeMount

QuantityValue = str | int | float
"""A quantity as it may appear on the wire; see muster.kube.objects.quantity."""


class KeySelector(KubeStruct):
    """One key of a ConfigMap or Secret."""

    key: str
    name: str = ""
    optional: bool | None = None


class EnvVarSource(KubeStruct):
    """The source of an environment variable's value; exactly one is set."""

    field_ref: ObjectFieldSelector | None = None
    resource_field_ref: ResourceFieldSelector | None = None
    config_map_key_ref: KeySelector | None = None
    secret_key_ref: KeySelector | None = None


class EnvVar(KubeStruct):
    """An environment variable; `$(NAME)` in the value refers to earlier ones."""

    name: str
    value: str = ""
    value_from: EnvVarSource | None = None


class EnvSource(KubeStruct):
    """A ConfigMap or Secret whose keys become variables."""

    name: str = ""
    optional: bool | None = None


class EnvFromSource(KubeStruct):
    """All keys of a ConfigMap or Secret, with a prefix."""

    prefix: str = ""
    config_map_ref: EnvSource | None = None
    secret_ref: EnvSource | None = None


class ResourceClaimReference(KubeStruct):
    """A claim of the pod that a container uses (dynamic resource allocation)."""

    name: str
    request: str = ""


class ResourceRequirements(KubeStruct):
    """Requests and limits by resource name, as quantities."""

    limits: dict[str, QuantityValue] = msgspec.field(default_factory=dict)
    requests: dict[str, QuantityValue] = msgspec.field(default_factory=dict)
    claims: tuple[ResourceClaimReference, ...] = ()


class ContainerPort(KubeStruct):
    """A port a container listens on."""

    container_port: int
    name: str = ""
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = ""


class ExecAction(KubeStruct):
    """Runs a command in the container."""

    command: tuple[str, ...] = ()


class HTTPHeader(KubeStruct):
    """A header of a probe's request."""

    name: str
    value: str


class HTTPGetAction(KubeStruct):
    """An HTTP GET; 200-399 is success."""

    port: int | str
    path: str = ""
    host: str = ""
    scheme: str = ""
    http_headers: tuple[HTTPHeader, ...] = ()


class TCPSocketAction(KubeStruct):
    """Opens a connection."""

    port: int | str
    host: str = ""


class GRPCAction(KubeStruct):
    """The gRPC health check."""

    port: int
    service: str | None = None


class SleepAction(KubeStruct):
    """Sleeps for a number of seconds."""

    seconds: int


class Probe(KubeStruct):
    """A check of a container. A number field of 0 means that the API server chooses its default."""

    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    grpc: GRPCAction | None = None
    initial_delay_seconds: int = 0
    timeout_seconds: int = 0
    period_seconds: int = 0
    success_threshold: int = 0
    failure_threshold: int = 0
    termination_grace_period_seconds: int | None = None


class LifecycleHandler(KubeStruct):
    """The action of a lifecycle hook."""

    exec: ExecAction | None = None
    http_get: HTTPGetAction | None = None
    tcp_socket: TCPSocketAction | None = None
    sleep: SleepAction | None = None


class Lifecycle(KubeStruct):
    """Hooks around a container's life."""

    post_start: LifecycleHandler | None = None
    pre_stop: LifecycleHandler | None = None


class SecurityContext(KubeStruct):
    """Rights of a container's processes."""

    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None


class Container(KubeStruct):
    """A container or an init container. An init container with `restart_policy` Always is a sidecar."""

    name: str
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    ports: tuple[ContainerPort, ...] = ()
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[EnvFromSource, ...] = ()
    resources: ResourceRequirements | None = None
    volume_mounts: tuple[VolumeMount, ...] = ()
    liveness_probe: Probe | None = None
    readiness_probe: Probe | None = None
    startup_probe: Probe | None = None
    lifecycle: Lifecycle | None = None
    security_context: SecurityContext | None = None
    restart_policy: str | None = None
    termination_message_path: str = ""
    termination_message_policy: str = ""
    stdin: bool = False
    tty: bool = False


class ContainerStateWaiting(KubeStruct):
    """The container has not started; `reason` says why."""

    reason: str = ""
    message: str = ""


class ContainerStateRunning(KubeStruct):
    """The container runs since `started_at`."""

    started_at: datetime | None = None


class ContainerStateTerminated(KubeStruct):
    """The container ended, with its exit code or signal."""

    exit_code: int
    signal: int = 0
    reason: str = ""
    message: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    container_id: str = msgspec.field(default="", name="containerID")


class ContainerState(KubeStruct):
    """At most one of the three is set. Without any of them, the container is waiting."""

    waiting: ContainerStateWaiting | None = None
    running: ContainerStateRunning | None = None
    terminated: ContainerStateTerminated | None = None


class ContainerStatus(KubeStruct):
    """A container's state as the kubelet reports it."""

    name: str
    state: ContainerState | None = None
    last_state: ContainerState | None = None
    ready: bool = False
    restart_count: int = 0
    image: str = ""
    image_id: str = msgspec.field(default="", name="imageID")
    container_id: str = msgspec.field(default="", name="containerID")
    started: bool | None = None
