"""A pod's last report before the kubelet started, which is kept beside the pod's logs."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import msgspec

from muster.kube.objects.container import ContainerState, ContainerStateTerminated, ContainerStatus
from muster.kube.objects.pod import PodStatus
from muster.kube.objects.struct import decode, encode

_FILE = "status.json"
_UNKNOWN_EXIT = 255  # containerd's exit code for a container whose end it did not see


def load_status(folder: Path) -> PodStatus | None:
    """The last status written for the pod of this folder, sent or not."""
    try:
        return decode((folder / _FILE).read_bytes(), PodStatus)
    except (OSError, msgspec.DecodeError):
        return None


def save_status(folder: Path, status: PodStatus) -> None:
    """Keep a status, at once and whole."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f"{_FILE}.new"
    fresh.write_bytes(encode(status))
    os.replace(fresh, folder / _FILE)


def after_reboot(status: ContainerStatus) -> ContainerStatus:
    """A container as a new kubelet finds it: what ran has ended, with an unknown exit."""
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
