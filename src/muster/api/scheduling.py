"""Names of backfill policies (docs/scheduling.md, "Backfill")."""

from __future__ import annotations

from typing import Literal, get_args

BackfillPolicy = Literal["strict", "easy", "preemptible"]
POLICIES: tuple[BackfillPolicy, ...] = get_args(BackfillPolicy)
