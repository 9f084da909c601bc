"""An attachment: one interface of one sandbox, and the addresses that it holds."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class AttachmentKey(msgspec.Struct, frozen=True, order=True, rename="camel"):
    """What CNI names an attachment by: the sandbox's container ID and the interface's name in it."""

    container_id: str
    ifname: str


class PodRef(msgspec.Struct, frozen=True, rename="camel"):
    """The pod of an attachment. Fields are empty if the runtime did not name it."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class Address(msgspec.Struct, frozen=True, rename="camel"):
    """An address as the pod configures it.

    Attributes:
        ip: the address.
        prefix: length of the prefix, such as 32 where each pod is routed on its own.
        gateway: the next hop, or empty if the node itself is the next hop.
    """

    ip: str
    prefix: int
    gateway: str = ""


class State(StrEnum):
    """How far ADD or DEL came."""

    RESERVED = "Reserved"
    """ADD began. The interface may exist or not."""
    ATTACHED = "Attached"
    RELEASING = "Releasing"
    """DEL began. The interface may still exist."""


class Assigned(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The addresses of an attachment.

    Attributes:
        key: its name.
        addresses: one of each family.
        state: how far ADD or DEL came.
        netns: path of the sandbox's network namespace.
        pod: its pod.
        network: name of the CNI network: GC of one network leaves the attachments of others alone.
        host_interface: name of the interface on the node's side, once attached.
        mac: hardware address of the pod's interface, once attached.
        boot_id: the boot of the node in which it was reserved. Interfaces do not survive a boot.
        since_s: when it was reserved, in seconds since that boot.
    """

    key: AttachmentKey
    addresses: tuple[Address, ...]
    state: State
    netns: str = ""
    pod: PodRef = PodRef()
    network: str = ""
    host_interface: str = ""
    mac: str = ""
    boot_id: str = ""
    since_s: float = 0.0
