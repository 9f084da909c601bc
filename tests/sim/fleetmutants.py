"""Ways to break teams, balloons and scaling, one idea each."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from muster.fleet.balloons import decide as balloons
from muster.fleet.scaling import controller as scaling
from muster.fleet.scaling import scale_up
from muster.fleet.scaling.executor import Carrier
from muster.kube.taintwriter import TaintWriter
from muster.teams import cache, executor, plan
from muster.teams.cache import Holdings
from muster.teams.node_health import Wellness
from muster.teams.usage import Rank
from tests.sim.mutants import Mutant, mutants_in

FLEET_MUTANTS: dict[str, Mutant] = {}
_mutant = mutants_in(FLEET_MUTANTS)


async def _no_reason(*args: object) -> str:
    return ""


@_mutant
def label_without_taint(stack: ExitStack) -> None:
    """The label says whose a node is; the taint stays the former owner's."""
    change_of = plan.change_of
    stack.enter_context(patch.object(plan, "change_of", lambda *args: replace(change_of(*args), put=(), drop=())))


@_mutant
def erase_what_others_tainted(stack: ExitStack) -> None:
    """Taints are written as one list, after all."""
    stack.enter_context(patch.object(TaintWriter, "_taints", lambda self, there, change: change.put))


@_mutant
def give_away_under_gangs(stack: ExitStack) -> None:
    """A node changes hands when the numbers say so, even under running pods."""
    stack.enter_context(patch.object(Holdings, "_rank", lambda *args: Rank.IDLE))


@_mutant
def overrule_hands(stack: ExitStack) -> None:
    """What a user labelled by hand is ours to change as well."""
    claim_of = cache.claim_of

    def ours(*args: Any) -> Any:
        return replace(claim_of(*args), by_hand=False)

    stack.enter_context(patch.object(cache, "claim_of", ours))
    stack.enter_context(patch.object(executor, "claim_of", ours))


@_mutant
def balloons_anywhere(stack: ExitStack) -> None:
    """A node is a node: taints, cordons and gangs' slots are others' business."""
    use_of = balloons.use_of

    def usable(*args: Any) -> Any:
        return None if use_of(*args) is None else balloons.NodeUse.USABLE

    stack.enter_context(patch.object(balloons, "use_of", usable))


@_mutant
def give_back_without_looking(stack: ExitStack) -> None:
    """A node is idle if its time is up."""
    stack.enter_context(patch.object(scaling.ScalingController, "_occupied", lambda *args: ""))
    stack.enter_context(patch.object(Carrier, "_needed", _no_reason))


@_mutant
def grow_without_end(stack: ExitStack) -> None:
    """Every waiting gang gets nodes, whatever the pool's maximum."""
    stack.enter_context(patch.object(scale_up, "ceiling", lambda *args: 1 << 30))


@_mutant
def say_it_again(stack: ExitStack) -> None:
    """The status of pools is written after every look."""
    stack.enter_context(patch.object(scaling, "kept_times", lambda new, old: new))


@_mutant
def believe_every_flap(stack: ExitStack) -> None:
    """A node is broken, and healthy again, the moment it looks so."""
    stack.enter_context(patch.object(Wellness, "_wait_s", lambda *args: 0.0))
