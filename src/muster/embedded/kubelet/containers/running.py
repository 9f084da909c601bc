"""The interface of a container for its hooks and probes."""

from __future__ import annotations

from typing import Protocol

from muster.embedded.kubelet.containers.grace import Grace
from muster.embedded.kubelet.containers.launch import Launch
from muster.embedded.kubelet.containers.process import Process
from muster.kube.objects.container import Container


class RunningContainer(Protocol):
    """A container that may be running.

    Attributes:
        spec: the container.
        process: its main process, while it runs.
        launched: the settings of its start.
        sessions: other processes in the container, which end with it.
    """

    spec: Container
    process: Process | None
    launched: Launch | None
    sessions: set[Process]

    @property
    def pod_ip(self) -> str:
        """The pod's address."""

    def end_soon(self, grace: Grace, message: str) -> None:
        """Begin to end the container, without waiting."""

    def set_probed(self, *, started: bool | None = None, ready: bool | None = None) -> None:
        """Store the result of a probe."""
