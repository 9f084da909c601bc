"""Opens a back end by its name on the command line."""

from __future__ import annotations

from muster.gputest.backend import Backend
from muster.gputest.drill import FAULTS

CPU_DEVICES = 8


def check_name(name: str) -> str | None:
    """Return what is wrong with a name of the form `nvidia`, `cpu` or `cpu:COUNT`; None if it is valid."""
    kind, colon, count = name.partition(":")
    if name == "nvidia" or (kind == "cpu" and (not colon or (count.isdecimal() and 0 < int(count) <= 64))):
        return None
    return f"no back end {name!r}: nvidia, cpu, or cpu:COUNT with up to 64 devices"


def open_backend(name: str, fault: str) -> Backend:
    """Open a back end, with an injected fault if one is named. Raises BackendError if the machine cannot be tested."""
    kind, _, count = name.partition(":")
    # Imported when chosen: images with and without GPU support need not contain each other's libraries.
    if kind == "cpu":
        from muster.gputest.reference import ReferenceBackend

        backend: Backend = ReferenceBackend(int(count or CPU_DEVICES))
    else:
        from muster.gputest.nvidia import NvidiaBackend

        backend = NvidiaBackend()
    return FAULTS[fault](backend) if fault else backend
