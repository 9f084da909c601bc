"""Names of backfill policies and of orders of the queue (docs/scheduling.md)."""

from __future__ import annotations

from typing import Literal, get_args

BackfillPolicy = Literal["strict", "easy", "preemptible"]
POLICIES: tuple[BackfillPolicy, ...] = get_args(BackfillPolicy)
QueueOrder = Literal["arrival", "fair"]
"""How gangs of the same priority are ordered."""
ORDERS: tuple[QueueOrder, ...] = get_args(QueueOrder)
