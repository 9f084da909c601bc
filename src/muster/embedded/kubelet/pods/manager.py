"""Manages all pods of the node: one worker for each pod."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterable

from muster.embedded.kubelet.pods.admission import Rejection, admit
from muster.embedded.kubelet.pods.context import NodeServices
from muster.embedded.kubelet.pods.worker import PodWorker
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod

_SHUTDOWN_GRACE_S = 2.0
log = logging.getLogger(__name__)


class PodManager:
    """Creates, updates and removes workers as the API server's pods of this node change."""

    def __init__(self, services: NodeServices, node: Callable[[], Node]) -> None:
        """`node` returns the present Node. Admission depends on its labels, taints and allocatable resources."""
        self._services = services
        self._node = node
        self._workers: dict[str, PodWorker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def workers(self) -> Iterable[PodWorker]:
        """The workers of all known pods."""
        return self._workers.values()

    def find(self, namespace: str, name: str) -> PodWorker | None:
        """Return the worker of the pod of this name; the newest one if an older pod is still ending."""
        key = f"{namespace}/{name}"
        return next((worker for worker in reversed(self._workers.values()) if worker.pod.key == key), None)

    def start(self, pods: Iterable[Pod]) -> None:
        """Start workers for existing pods, oldest first, and remove leftovers of earlier pods."""
        pods = sorted(pods, key=lambda pod: (str(pod.metadata.creation_timestamp), pod.key))
        for pod in pods:
            self.changed(None, pod)
        known = {pod.uid for pod in pods}
        folder = self._services.settings.pods_dir
        for left in folder.iterdir() if folder.is_dir() else ():
            if left.name not in known:
                shutil.rmtree(left, ignore_errors=True)

    def changed(self, old: Pod | None, new: Pod | None) -> None:
        """Handle a change of a pod, from an informer."""
        if new is None:
            if old is not None and old.uid in self._workers:
                self._workers[old.uid].vanished()
                self._forget_later(old.uid)
            return
        worker = self._workers.get(new.uid)
        if worker is not None:
            worker.update(new)
            return
        rejection = None if new.finished else self._admit(new)
        if rejection is not None:
            log.info("pod %s rejected: %s", new.key, rejection.reason)
            self._services.event(new, "Warning", rejection.reason, rejection.message)
        worker = self._workers[new.uid] = PodWorker(new, self._services, rejection)
        task = self._tasks[new.uid] = asyncio.create_task(worker.run(), name=f"pod {new.key}")
        task.add_done_callback(_log_failure)

    async def shut_down(self) -> None:
        """End the processes of all pods, as when the machine is switched off."""
        for worker in self._workers.values():
            worker.shut_down(_SHUTDOWN_GRACE_S)
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _admit(self, pod: Pod) -> Rejection | None:
        """Return why the pod is rejected. Force-deleted pods do not count, as with the kubelet (kubernetes#104824).

        Unlike with the kubelet, a pod waits for GPUs of a pod that is still ending.
        """
        others = [worker.pod for worker in self._workers.values() if worker.active and not worker.is_gone]
        return admit(pod, self._node(), others)

    def _forget_later(self, uid: str) -> None:
        task = self._tasks[uid]

        def forget(_: asyncio.Task[None]) -> None:
            worker = self._workers.pop(uid)
            del self._tasks[uid]
            worker.remove_folder()

        task.add_done_callback(forget)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s: %s", task.get_name(), error, exc_info=error)
