"""Findings about addresses, and which of them the reconciler frees."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from muster.network.addresses.attachment import Assigned, AttachmentKey


class Problem(StrEnum):
    """What differs between the views."""

    LEAKED = "Leaked"
    """Neither the runtime nor the kernel has the attachment. Once confirmed, the reconciler frees its address."""
    ORPHANED = "Orphaned"
    """The interface exists, but the runtime has forgotten its sandbox."""
    DISCONNECTED = "Disconnected"
    """The sandbox runs, but its interface is gone."""
    UNRECORDED = "Unrecorded"
    """An interface of Muster exists that the store does not know. Its addresses are not given to other pods."""
    BLOCK = "Block"
    """The provider and the store differ about a block."""


class Finding(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A difference.

    Attributes:
        problem: the kind.
        key: the attachment, if it is about one.
        addresses: the addresses that are affected, or the block.
        pod: `namespace/name`, if known.
        message: what is the matter and what to do, for people.
        seen_s: for how long it has been seen, in seconds.
    """

    problem: Problem
    key: AttachmentKey | None = None
    addresses: tuple[str, ...] = ()
    pod: str = ""
    message: str = ""
    seen_s: float = 0.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one comparison.

    Attributes:
        free: attachments whose addresses nothing uses, confirmed. They must be unchanged when they are freed.
        hold: addresses that pods must not get.
        findings: what differs.
        suspects: when each leaked attachment was first seen so, for the next comparison.
        blind: which views were missing; then nothing is freed.
    """

    free: tuple[Assigned, ...] = ()
    hold: frozenset[str] = frozenset()
    findings: tuple[Finding, ...] = ()
    suspects: Mapping[AttachmentKey, float] = {}
    blind: tuple[str, ...] = ()
