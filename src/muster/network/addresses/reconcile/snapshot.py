"""What each witness says about the attachments of this node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from muster.network.addresses.attachment import Assigned, AttachmentKey


class KernelView(NamedTuple):
    """The kernel's interfaces and addresses.

    Attributes:
        interfaces: Muster's host interfaces by attachment, and the addresses that are routed to each.
        local: addresses of the node's own interfaces, and those that are routed to other programs' interfaces.
    """

    interfaces: Mapping[AttachmentKey, frozenset[str]]
    local: frozenset[str] = frozenset()


class Sandbox(NamedTuple):
    """A sandbox of the runtime.

    Attributes:
        id: its container ID.
        ready: whether it runs. One that does not may still wait for DEL.
    """

    id: str
    ready: bool


class Snapshot(NamedTuple):
    """The views at one time.

    Attributes:
        attachments: of the store.
        kernel: None: the kernel did not answer.
        runtime: the sandboxes by ID; None: the runtime did not answer.
        boot_id: the node's boot.
        now_s: seconds since the boot.
        provider: problems of blocks, by CIDR.
    """

    attachments: tuple[Assigned, ...]
    kernel: KernelView | None
    runtime: Mapping[str, Sandbox] | None
    boot_id: str
    now_s: float
    provider: Mapping[str, str]
