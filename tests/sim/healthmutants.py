"""Ways to break remediation and preflight, one idea each."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import cycle
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from muster.api.trust import Doubt
from muster.fleet.remediation import decide, exits, ladder, room
from muster.fleet.remediation.carrying import Carrier
from muster.fleet.remediation.ladder import Ladder
from muster.fleet.remediation.looking import Looker
from muster.fleet.remediation.record import EMPTY, last
from muster.scheduler import trust
from tests.sim.mutants import Mutant, mutants_in

HEALTH_MUTANTS: dict[str, Mutant] = {}
_mutant = mutants_in(HEALTH_MUTANTS)


@_mutant
def breaker_counts_nothing(stack: ExitStack) -> None:
    """What went into quarantine lately is forgotten."""
    stack.enter_context(patch.object(room, "quarantines", lambda session: []))


@_mutant
def budget_of_teams_ignored(stack: ExitStack) -> None:
    """A team may lose all of its nodes at once."""
    short = room.Room._short

    def nobodys(self: Any, limits: Any, taken: Any, node: Any, what: str) -> Any:
        return short(self, limits, taken, replace(node, team=""), what)

    stack.enter_context(patch.object(room.Room, "_short", nobodys))


@_mutant
def every_fault_is_its_own(stack: ExitStack) -> None:
    """The same fault on many nodes is many faults."""
    stack.enter_context(patch.object(decide, "shared_faults", lambda *args: {}))


@_mutant
def any_pass_will_do(stack: ExitStack) -> None:
    """A node that passed a test once is well."""

    def passed(session: Any, node: Any, tested: Any, evidence: Any) -> bool:
        return tested is not None and tested.passed and exits.is_own(tested, node)

    stack.enter_context(patch.object(ladder, "passed", passed))


@_mutant
def silence_is_health(stack: ExitStack) -> None:
    """A node against which nothing speaks any more leaves quarantine."""
    leaves = Ladder.leaves

    def out(self: Any, session: Any, node: Any, evidence: Any) -> bool:
        if evidence is None:
            self._release(session, "nothing is said of it")
            return True
        return leaves(self, session, node, evidence)

    stack.enter_context(patch.object(Ladder, "leaves", out))


@_mutant
def a_boot_is_a_boot(stack: ExitStack) -> None:
    """Trust does not ask in which boot a node was tested."""
    doubt = trust.doubt

    def of_any_boot(node: Any, record: Any) -> Doubt:
        found = doubt(node, record)
        return Doubt.NONE if found is Doubt.REBOOTED else found

    stack.enter_context(patch.object(trust, "doubt", of_any_boot))


@_mutant
def do_it_again(stack: ExitStack) -> None:
    """Whoever comes next gives the pod another name, and the machine is told once more."""
    names = cycle("abc")
    name = ladder.step_name
    stack.enter_context(patch.object(ladder, "step_name", lambda *args: f"{name(*args)}-{next(names)}"))


@_mutant
def empty_before_it_is_closed(stack: ExitStack) -> None:
    """The taint comes when the node is empty: who leaves may come back."""
    quarantine, on_rung = Carrier._quarantine, Ladder._on_rung

    async def late(self: Any, action: Any) -> str:
        session = self._known.sessions.get(action.session)
        empty = session is not None and last(session.status, EMPTY) is not None
        return await quarantine(self, action) if empty else "later"

    def hasty(self: Any, session: Any, node: Any, evidence: Any) -> None:
        on_rung(self, session, replace(node, tainted=True), evidence)

    stack.enter_context(patch.object(Carrier, "_quarantine", late))
    stack.enter_context(patch.object(Ladder, "_on_rung", hasty))


@_mutant
def touch_without_looking(stack: ExitStack) -> None:
    """A node that is to be drained counts as empty."""

    async def empty(self: Any, node: str) -> bool:
        return True

    async def nobody(self: Any, nodes: Any) -> None:
        self.pods = dict.fromkeys(nodes, ())

    stack.enter_context(patch.object(Looker, "is_empty", empty))
    stack.enter_context(patch.object(Looker, "at_pods", nobody))


@_mutant
def lose_what_is_under_way(stack: ExitStack) -> None:
    """A node that is being emptied is somebody else's business once that is written, and has no deadline."""
    climb = Ladder.climb

    def only_others(self: Any, session: Any, node: Any, evidence: Any) -> None:
        if session.status.rung != "Drain":
            climb(self, session, node, evidence)

    stack.enter_context(patch.object(Ladder, "climb", only_others))
