"""The state that the containers of a pod share, and the services that a node's pods share."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from muster.embedded.kubelet import sweep
from muster.embedded.kubelet.containers.cgroups import ControlGroups
from muster.embedded.kubelet.containers.downward import PodFacts
from muster.embedded.kubelet.containers.environment import machine_environment
from muster.embedded.kubelet.containers.volumes import PodVolumes
from muster.embedded.kubelet.pods.network import PodNetwork
from muster.embedded.kubelet.pods.objects import ObjectSource, TokenSource
from muster.embedded.kubelet.pods.pool import DevicePool
from muster.embedded.kubelet.settings import Settings
from muster.kube.client import Client
from muster.kube.objects.pod import Pod

_REAL_GPU = Path("/dev/nvidiactl")
EventSink = Callable[[Pod, str, str, str], None]
"""Called with a pod, an event's type (Normal, Warning), reason and message."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeServices:
    """Services that a node's pods share."""

    settings: Settings
    client: Client
    event: EventSink
    objects: ObjectSource
    tokens: TokenSource
    network: PodNetwork
    devices: DevicePool
    cgroups: ControlGroups
    allocatable: Mapping[str, str]
    service_variables: Mapping[str, str]


@dataclasses.dataclass(kw_only=True)
class PodContext:
    """One pod on its node.

    Attributes:
        pod: its newest version.
        services: those of the node.
        folder: its folder below the state directory.
        ip: its address.
        netns: the file of its network namespace; "" if it shares the machine's.
        devices: its GPUs.
        volumes: its volumes, after their creation.
    """

    pod: Pod
    services: NodeServices
    folder: Path
    ip: str = ""
    netns: str = ""
    devices: list[int] = dataclasses.field(default_factory=list)
    volumes: PodVolumes | None = None

    @property
    def facts(self) -> PodFacts:
        """Returns the facts for the downward API."""
        return PodFacts(self.pod, self.ip, self.services.settings.address, self.services.allocatable)

    def make_folders(self) -> None:
        """Create its folders. Other users may traverse them if containers may run as other users."""
        mode = 0o711 if os.geteuid() == 0 else 0o700
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(mode)
        for name, access in (("home", 0o777), ("tmp", 0o1777), ("volumes", mode), ("logs", 0o700), ("messages", mode)):
            (self.folder / name).mkdir(exist_ok=True)
            (self.folder / name).chmod(access)

    def own_variables(self, container_id: str, devices: Sequence[int]) -> dict[str, str]:
        """Environment that the kubelet itself sets in a container; `devices` are the GPUs it may use."""
        variables = machine_environment(self.folder)
        if devices:
            variables["NVIDIA_VISIBLE_DEVICES"] = ",".join(map(str, devices))
            if _REAL_GPU.exists():  # without a device plugin, only this keeps a process off other pods' GPUs
                variables["CUDA_VISIBLE_DEVICES"] = variables["NVIDIA_VISIBLE_DEVICES"]
        return variables | {
            sweep.CLUSTER_MARKER: self.services.settings.cluster_id,
            sweep.NODE_MARKER: self.services.settings.node,
            sweep.POD_MARKER: self.pod.uid,
            sweep.CONTAINER_MARKER: container_id,
        }

    def log_folder(self, container: str) -> Path:
        """Returns the folder of a container's logs, one file per start: `0.log`, `1.log`, ..."""
        return self.folder / "logs" / container
