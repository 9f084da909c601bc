"""Opening a back end by its name on the command line."""

from __future__ import annotations

from muster.gputest.backend import Backend
from muster.gputest.drill import FAULTS

CPU_DEVICES = 8


def check_name(name: str) -> str | None:
    """What is wrong with a name of the form `nvidia`, `cpu` or `cpu:COUNT`; None where nothing is."""
    kind, colon, count = name.partition(":")
    if name == "nvidia" or (kind == "cpu" and (not colon or (count.isdecimal() and 0 < int(count) <= 64))):
        return None
    return f"no back end {name!r}: nvidia, cpu, or cpu:COUNT with up to 64 devices"


def open_backend(name: str, fault: str) -> Backend:
    """The back end, with a fault in it where one is named. Raises BackendError where there is nothing to test."""
    kind, _, count = name.partition(":")
    # Imported where it is chosen: images for GPUs and tests without one need not hold each other's libraries.
    if kind == "cpu":
        from muster.gputest.reference import ReferenceBackend

        backend: Backend = ReferenceBackend(int(count or CPU_DEVICES))
    else:
        from muster.gputest.nvidia import NvidiaBackend

        backend = NvidiaBackend()
    return FAULTS[fault](backend) if fault else backend
