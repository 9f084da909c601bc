"""Corrects what is remembered if a part of a plan was not executed."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from muster.fleet.scaling.classify import tracked_key
from muster.fleet.scaling.plan import Action, Delete, Plan
from muster.fleet.scaling.snapshot import PoolMemory, View
from muster.fleet.scaling.states import Tracked


def undone(plan: Plan, view: View, actions: Iterable[Action]) -> tuple[dict[str, Tracked], dict[str, PoolMemory]]:
    """Return node states and pool memory as if these actions had not been in the plan that was made from `view`.

    A size that was not set needs no correction: the next read shows the group's actual size.
    """
    tracked, memory = dict(plan.tracked), dict(plan.memory)
    for action in actions:
        if not isinstance(action, Delete):
            continue
        key = tracked_key(action.pool, action.instance)
        before = view.tracked.get(key)
        if before is not None:
            tracked[key] = before
        else:
            tracked.pop(key, None)
        if not action.replace:
            known = memory[action.pool]
            memory[action.pool] = msgspec.structs.replace(known, asked=known.asked + 1)
    return tracked, memory
