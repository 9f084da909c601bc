"""Stores a pod's last status beside its logs, for the next start of the kubelet."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import msgspec

from muster.kube.objects.container import ContainerState, ContainerStateTerminated, ContainerStatus
from muster.kube.objects.pod import PodStatus
from muster.kube.objects.struct import decode, encode

_FILE = "status.json"
_UNKNOWN_EXIT = 255  # containerd's exit code for a container whose end it missed


def load_status(folder: Path) -> PodStatus | None:
    """Return the last stored status of the pod of this folder, even if it was not sent."""
    try:
        return decode((folder / _FILE).read_bytes(), PodStatus)
    except (OSError, msgspec.DecodeError):
        return None


def save_status(folder: Path, status: PodStatus) -> None:
    """Store a status atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f"{_FILE}.new"
    fresh.write_bytes(encode(status))
    os.replace(fresh, folder / _FILE)


def after_reboot(status: ContainerStatus) -> ContainerStatus:
    """Return a container's status for a new kubelet: a running container has ended with an unknown exit code."""
    running = status.state.running if status.state else None
    if running is None:
        return status
    ended = ContainerStateTerminated(
        exit_code=_UNKNOWN_EXIT,
        reason="Unknown",
        message="the kubelet ended while the container ran",
        started_at=running.started_at,
        finished_at=datetime.datetime.now(datetime.UTC).replace(microsecond=0),
        container_id=status.container_id,
    )
    return msgspec.structs.replace(status, state=ContainerState(terminated=ended), ready=False, started=False)
