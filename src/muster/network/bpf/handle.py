"""What programs and maps of eBPF share: a descriptor, which may get a name in a bpf file system."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from muster.network.bpf.syscall import pin

H = TypeVar("H", bound="Handle")


class Handle:
    """This process's descriptor of an object in the kernel. The object lives on if it is pinned or in use.

    Attributes:
        descriptor: the descriptor.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __enter__(self: H) -> H:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)

    def pin(self, path: Path) -> None:
        """Name the object in a bpf file system. Raises BpfError."""
        pin(self.descriptor, path)
