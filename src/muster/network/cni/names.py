"""Names of host interfaces. They follow from the attachment, so that a repeated ADD or DEL finds what is there."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from typing import Final

from muster.network.addresses.attachment import AttachmentKey

PREFIX: Final = "mus"
"""Begins the name of each host interface. The rules of masquerade.py match it."""
_DIGITS: Final = 12  # the kernel's names have at most 15 characters (IFNAMSIZ)
_ALIAS: Final = "muster:"
_KEPT: Final = 256
"""Names that are kept: a request uses those of its attachment several times."""


@lru_cache(_KEPT)
def host_interface_name(key: AttachmentKey) -> str:
    """Return the name of the node's side of an attachment. Two attachments of a node differ in 60 bits."""
    return PREFIX + base64.b32encode(_digest(key)).decode().lower()[:_DIGITS]


def host_mac(key: AttachmentKey) -> str:
    """Return the hardware address of the node's side: locally administered, unicast."""
    return _mac(_digest(key)[8:14])


def pod_mac(key: AttachmentKey) -> str:
    """Return the hardware address of the pod's side."""
    return _mac(_digest(key)[14:20])


def alias(key: AttachmentKey) -> str:
    """Return the text that the kernel keeps with the host interface: whose it is."""
    return f"{_ALIAS}{key.container_id}/{key.ifname}"


def key_of_alias(text: str) -> AttachmentKey | None:
    """Return the attachment of a host interface's alias; None if the interface is not Muster's."""
    container_id, separator, ifname = text.removeprefix(_ALIAS).partition("/")
    return AttachmentKey(container_id, ifname) if text.startswith(_ALIAS) and separator else None


@lru_cache(_KEPT)
def _digest(key: AttachmentKey) -> bytes:
    return hashlib.sha256(f"{key.container_id}/{key.ifname}".encode()).digest()


def _mac(octets: bytes) -> str:
    return bytes((octets[0] & 0xFC | 0x02, *octets[1:])).hex(":")
