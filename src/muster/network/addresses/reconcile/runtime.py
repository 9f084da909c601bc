"""The runtime's view: the sandboxes that it lists over CRI (kubernetes/cri-api, runtime.v1, ListPodSandbox)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from muster.kube.connection.grpcunix import CallError, call, fields_of
from muster.network.addresses.reconcile.snapshot import Sandbox

_LIST: Final = "/runtime.v1.RuntimeService/ListPodSandbox"
_TIMEOUT_S: Final = 10.0
_BYTES_MAX: Final = 16 << 20
_ITEMS: Final = 1  # of ListPodSandboxResponse
_ID, _STATE = 1, 3  # of PodSandbox
_READY: Final = 0


async def look_at_runtime(socket: Path) -> dict[str, Sandbox] | None:
    """Return all sandboxes by ID; None if the runtime did not answer, or not as CRI says."""
    try:
        answer = await call(str(socket), _LIST, _TIMEOUT_S, bytes_max=_BYTES_MAX)
        items = [value for number, value in fields_of(answer) if number == _ITEMS and isinstance(value, bytes)]
        found = [_sandbox(item) for item in items]
    except (CallError, PermissionError, ValueError):
        return None
    return {each.id: each for each in found}


def _sandbox(item: bytes) -> Sandbox:
    name, state = "", _READY
    for number, value in fields_of(item):
        if number == _ID and isinstance(value, bytes):
            name = value.decode()
        elif number == _STATE and isinstance(value, int):
            state = value
    if not name:
        raise ValueError("a sandbox has no ID")
    return Sandbox(name, state == _READY)
