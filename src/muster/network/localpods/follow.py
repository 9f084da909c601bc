"""Follows the pods of this node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from muster.kube.client import Client
from muster.kube.informer import Informer
from muster.kube.objects.pod import Pod
from muster.kube.progress import Progress
from muster.network.localpods.cgroups import Cgroups
from muster.network.localpods.identity import local_pod
from muster.network.localpods.interfaces import Interfaces
from muster.network.localpods.pod import LocalPod
from muster.network.localpods.saved import load_pods, save_pods

log = logging.getLogger(__name__)

FILE: Final = "pods.json"
_LOOP: Final = "pods"
_PASS_S: Final = 0.2
"""Changes are taken together for this long: a node starts many pods at once."""
_MARK_S: Final = 10.0
_LATE_S: Final = 60.0


class FollowedPods:
    """The pods of a node, from the API server or, until it answers, from the last run.

    Liveness does not depend on the API server, because a restart of the agent would not bring it back.

    Args:
        client: the API server, perhaps through the read cache.
        node: name of the node.
        team_key: label of pods that names their team.
        state: folder that survives reboots; it exists.
        cgroup: the node's /sys/fs/cgroup.
        progress: marked by the loop.
    """

    def __init__(self, client: Client, node: str, team_key: str, state: Path, cgroup: Path, progress: Progress) -> None:
        self._informer = Informer(client, Pod, field_selector=f"spec.nodeName={node}")
        self._team_key = team_key
        self._file = state / FILE
        self._cgroups = Cgroups(cgroup)
        self._interfaces = Interfaces()
        self._progress = progress
        self._pods: Mapping[str, LocalPod] = MappingProxyType(load_pods(self._file))
        self._revision = 0
        self._woken = asyncio.Event()
        self._changed = asyncio.Event()
        self.save_failures = 0
        """Writes of the file that failed."""

    @property
    def pods(self) -> Mapping[str, LocalPod]:
        """All known pods by UID."""
        return self._pods

    @property
    def revision(self) -> int:
        """Rises with each change."""
        return self._revision

    @property
    def synced(self) -> bool:
        """Whether the API server has listed the pods since the start."""
        return self._informer.has_synced

    @property
    def contact_s(self) -> float:
        """The event loop's time of the last contact with the API server; 0 before the first."""
        return self._informer.last_progress

    async def changed(self, revision: int) -> int:
        """Wait until the revision is another one, and return it."""
        while self._revision == revision:
            await self._changed.wait()
        return self._revision

    def cgroups(self, pod: LocalPod) -> tuple[str, ...]:
        """Return the pod's folders below /sys/fs/cgroup; () if unknown."""
        return self._cgroups.find(pod.cgroup_uid or pod.uid)

    def host_interface(self, pod: LocalPod) -> str:
        """Return the interface on the host that carries the pod's packets and no others; "" without one."""
        return "" if pod.host_network else self._interfaces.of_addresses(pod.addresses)

    async def run(self) -> None:
        """Follow the pods until cancelled."""
        self._informer.add_handler(lambda old, new: self._woken.set())
        self._progress.expect(_LOOP, _LATE_S)
        following = asyncio.create_task(self._informer.run())
        try:
            while not following.done():
                self._progress.mark(_LOOP)
                try:
                    async with asyncio.timeout(_MARK_S if self._revision else _PASS_S):
                        await self._woken.wait()
                    await asyncio.sleep(_PASS_S)
                except TimeoutError:
                    if self._revision:
                        continue
                if self._informer.has_synced:
                    self._woken.clear()
                    await self._take()
            await following
        finally:
            following.cancel()
            await asyncio.wait([following])

    async def _take(self) -> None:
        pods = {each.uid: local_pod(each, self._team_key) for each in self._informer.store.values()}
        if pods == self._pods and self._revision:
            return
        self._pods = MappingProxyType(pods)
        self._revision += 1
        self._changed.set()
        self._changed = asyncio.Event()
        try:
            await asyncio.to_thread(save_pods, self._file, pods.values())
        except OSError as error:
            self.save_failures += 1
            log.warning("the pods of this node cannot be saved in %s: %s", self._file, error)
