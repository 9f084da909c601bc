"""Opens a back end by its name on the command line."""

from __future__ import annotations

from muster.gputest.backend import Backend
from muster.gputest.drill import FAULTS

CPU_DEVICES = 8


def open_backend(name: str, fault: str) -> Backend:
    """Open a back end, with an injected fault if one is named. Raises BackendError if the machine cannot be tested."""
    kind, _, count = name.partition(":")
    # Each back end is imported only when it is chosen. So an image without GPU support needs no GPU libraries, and an
    # image with GPU support needs no libraries of the CPU back end.
    if kind == "cpu":
        from muster.gputest.reference import ReferenceBackend

        backend: Backend = ReferenceBackend(int(count or CPU_DEVICES))
    else:
        from muster.gputest.nvidia import NvidiaBackend

        backend = NvidiaBackend()
    return FAULTS[fault](backend) if fault else backend
