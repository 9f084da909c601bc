"""A pod of this node, as the parts of the network agent see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec


class LocalPod(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod of this node.

    Attributes:
        namespace, name, uid: of the pod.
        job: name of the owner that people know, in the pod's namespace: a TrainingJob, another gang, a Job, a
            Deployment. "" without an owner.
        team: of the label `muster.dev/team`; "" without one.
        priority: spec.priority.
        addresses: status.podIPs. Those of a host-network pod are the node's.
        host_network: whether it is in the node's network namespace.
        phase: status.phase.
        created_s: creation time, seconds since 1970.
        cgroup_uid: the UID in the names of its cgroups, if it is another one: that of a static pod is its hash.
        rdma: whether it may use RDMA devices: it requests one, or mounts /dev/infiniband of the node.
        pulling: images of its containers that wait for their image.
    """

    namespace: str
    name: str
    uid: str
    job: str = ""
    team: str = ""
    priority: int = 0
    addresses: tuple[str, ...] = ()
    host_network: bool = False
    phase: str = ""
    created_s: float = 0.0
    cgroup_uid: str = ""
    rdma: bool = False
    pulling: tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether its containers have ended for good. Its address may then belong to another pod."""
        return self.phase in ("Succeeded", "Failed")


class LocalPods(Protocol):
    """The pods of this node. Without the API server it is the last known set."""

    @property
    def pods(self) -> Mapping[str, LocalPod]:
        """All known pods by UID, ended ones too. The mapping does not change; a later call returns another one."""

    @property
    def revision(self) -> int:
        """Rises with each change."""

    async def changed(self, revision: int) -> int:
        """Wait until the revision is another one, and return it."""

    def cgroups(self, pod: LocalPod) -> tuple[str, ...]:
        """Return the pod's folders below `HostPaths.cgroup`, such as `unified/kubepods.slice/...`; () if unknown."""

    def host_interface(self, pod: LocalPod) -> str:
        """Return the name of the interface on the host that carries the pod's packets and no others; "" without one.

        Raises:
            OSError: the kernel did not answer.
        """
