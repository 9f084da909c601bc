"""Reads stalls that a controller of an earlier version wrote: their suspicion is part of the message."""

from __future__ import annotations

from muster.api.training_job_status import Stall


def suspicion_of(stall: Stall) -> str:
    """Return what points at the cause of the stall; "" if nothing does."""
    return stall.suspicion or stall.message.partition("; ")[2]
