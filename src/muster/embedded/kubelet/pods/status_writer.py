"""Reports a pod's status after changes; simultaneous changes become one write."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster.embedded.kubelet.pods.restored import save_status
from muster.kube.client import STRATEGIC_MERGE_PATCH, Client
from muster.kube.errors import ApiError, Conflict, Invalid, NotFound
from muster.kube.objects.pod import Pod, PodStatus
from muster.kube.objects.struct import to_dict

_SETTLE_S = 0.02
_UNDER_WAY_S = 0.5
_RETRY_S = 0.5
_RETRY_LONGEST_S = 10.0
log = logging.getLogger(__name__)


class StatusWriter:
    """Writes one pod's status whenever it differs from the last report.

    Attributes:
        pod: the newest version of the pod.
        pod_gone: the pod's object no longer exists.
        reported: the last status that the API server accepted.
    """

    def __init__(
        self, client: Client, folder: Path, pod: Pod, current: Callable[[], PodStatus], under_way: Callable[[], bool]
    ) -> None:
        """`current` returns the status to report; `under_way` returns whether it is about to change."""
        self.pod = pod
        self.pod_gone = False
        self.reported = pod.status
        self._client = client
        self._folder = folder
        self._current = current
        self._under_way = under_way
        self._dirty = asyncio.Event()
        self._lock = asyncio.Lock()

    def changed(self) -> None:
        """Check for a changed status."""
        self._dirty.set()

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self._dirty.wait()
            await self._settle()
            await self.flush()

    async def flush(self) -> None:
        """Report now. Returns when the API server has the status, or when the pod is gone."""
        retry_s = _RETRY_S
        while not self.pod_gone:
            try:
                async with self._lock:
                    await self._write()
                return
            except Invalid as error:
                log.error("pod %s: status refused: %s", self.pod.key, error)
                return
            except ApiError as error:
                log.warning("pod %s: status not reported yet: %s", self.pod.key, error)
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _RETRY_LONGEST_S)

    async def delete_pod(self) -> None:
        """Delete the pod's object, when none of its processes runs any more."""
        retry_s = _RETRY_S
        while not self.pod_gone:
            try:
                await self._client.delete(Pod, self.pod.name, namespace=self.pod.namespace, uid=self.pod.uid, grace_s=0)
                return
            except (NotFound, Conflict):
                return
            except ApiError as error:
                log.warning("pod %s: not deleted yet: %s", self.pod.key, error)
            await asyncio.sleep(retry_s)
            retry_s = min(2 * retry_s, _RETRY_LONGEST_S)

    async def _settle(self) -> None:
        """Wait for a moment if a start or an end is in progress, so that one write has all its changes."""
        waited_s = 0.0
        while True:
            await asyncio.sleep(_SETTLE_S)
            waited_s += _SETTLE_S
            if waited_s >= _UNDER_WAY_S or not self._under_way():
                return

    async def _write(self) -> None:
        self._dirty.clear()
        status = self._current()
        save_status(self._folder, status)
        if status == self.reported:
            return
        before, after = _wire(self.reported), _wire(status)
        body: dict[str, Any] = {name: value for name, value in after.items() if before.get(name) != value}
        body |= {name: None for name in ("reason", "message") if name in before and name not in after}
        patch = {"metadata": {"uid": self.pod.uid}, "status": body}
        try:
            await self._client.patch(
                Pod,
                self.pod.name,
                patch,
                namespace=self.pod.namespace,
                subresource="status",
                content_type=STRATEGIC_MERGE_PATCH,
            )
        except (NotFound, Conflict):
            self.pod_gone = True  # deleted, or recreated under the same name
            return
        self.reported = status


def _wire(status: PodStatus) -> dict[str, Any]:
    """Return the status as JSON, with empty fields of containers that the API requires."""
    found = to_dict(status)
    for name in ("initContainerStatuses", "containerStatuses"):
        required = {"ready": False, "restartCount": 0, "image": "", "imageID": "", "lastState": {}}
        found |= {name: [required | container for container in found[name]]} if name in found else {}
    return found
