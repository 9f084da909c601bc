"""Phrases that messages of several parts share."""

from __future__ import annotations

from collections.abc import Iterable

from muster.api.training_job_status import RankState

_TROUBLE = {"stopped": "is stopped (SIGSTOP or a debugger)", "zombie": "is a zombie", "gone": "has no process"}


def counted(count: int, what: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {what}{'s' if count != 1 else ''}"


def few(names: Iterable[str]) -> str:
    """Join up to three names, and count the others."""
    listed = sorted(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")


def rank_text(each: RankState) -> str:
    """`rank 1 (slot 1 on node-1) is stopped (SIGSTOP or a debugger)`."""
    where = f"slot {each.slot}" + (f" on {each.node}" if each.node else "")
    return f"rank {each.rank} ({where}) {_TROUBLE.get(each.state, each.state)}"
