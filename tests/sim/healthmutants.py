"""Ways to break remediation and preflight, one idea each."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import cycle
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from muster.api.trust import Doubt
from muster.fleet.preflight import cache
from muster.fleet.remediation import controller, decide
from muster.fleet.remediation.draining import budgets
from muster.fleet.remediation.evidence.dead_nodes import Death
from muster.fleet.remediation.executor import Carrier
from muster.fleet.remediation.ladder import exits, record
from muster.fleet.remediation.ladder import session as ladder
from muster.fleet.remediation.ladder.session import Ladder
from muster.fleet.remediation.lookups import Looker
from muster.fleet.remediation.repairs.replacement import ByProvider
from muster.scheduler.nodes import trust
from tests.sim.mutants import Mutant, mutants_in

HEALTH_MUTANTS: dict[str, Mutant] = {}
_mutant = mutants_in(HEALTH_MUTANTS)


@_mutant
def breaker_counts_nothing(stack: ExitStack) -> None:
    """What went into quarantine lately is forgotten."""
    stack.enter_context(patch.object(budgets, "quarantines", lambda session: []))


@_mutant
def budget_of_teams_ignored(stack: ExitStack) -> None:
    """A team may lose all of its nodes at once."""
    short = budgets.Room._short

    def unbudgeted(self: Any, limits: Any, taken: Any, node: Any, what: str) -> Any:
        return short(self, limits, taken, replace(node, team=""), what)

    stack.enter_context(patch.object(budgets.Room, "_short", unbudgeted))


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
            self._release(session, "nothing is reported about it")
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
    """The next leader gives the pod another name, and the machine gets the order twice."""
    names = cycle("abc")
    name = ladder.step_name
    stack.enter_context(patch.object(ladder, "step_name", lambda *args: f"{name(*args)}-{next(names)}"))


@_mutant
def empty_before_it_is_closed(stack: ExitStack) -> None:
    """The taint comes when the node is empty: who leaves may come back."""
    quarantine, on_rung = Carrier._quarantine, Ladder._on_rung

    async def late(self: Any, action: Any) -> str:
        session = self._known.sessions.get(action.session)
        empty = session is not None and record.last(session.status, "Emptied") is not None
        return await quarantine(self, action) if empty else "later"

    def hasty(self: Any, session: Any, node: Any, evidence: Any) -> None:
        on_rung(self, session, replace(node, quarantined=True), evidence)

    stack.enter_context(patch.object(Carrier, "_quarantine", late))
    stack.enter_context(patch.object(Ladder, "_on_rung", hasty))


@_mutant
def touch_without_looking(stack: ExitStack) -> None:
    """A node that is to be drained counts as empty."""

    async def empty(self: Any, node: str, **options: bool) -> bool:
        return True

    async def no_pods(self: Any, nodes: Any) -> None:
        self.pods = dict.fromkeys(nodes, ())

    stack.enter_context(patch.object(Looker, "is_empty", empty))
    stack.enter_context(patch.object(Looker, "at_pods", no_pods))


@_mutant
def lose_what_is_under_way(stack: ExitStack) -> None:
    """A node that is being emptied is another user's business once that is written, and has no deadline."""
    climb = Ladder.climb

    def only_others(self: Any, session: Any, node: Any, evidence: Any) -> None:
        if session.status.rung != "Drain":
            climb(self, session, node, evidence)

    stack.enter_context(patch.object(Ladder, "climb", only_others))


@_mutant
def budget_of_pools_ignored(stack: ExitStack) -> None:
    """A pool may lose all of its nodes at once, as long as all pools together do not."""
    short = budgets.Room._short

    def unbudgeted(self: Any, limits: Any, taken: Any, node: Any, what: str) -> Any:
        return short(self, replace(limits, pool="100%"), taken, node, what)

    stack.enter_context(patch.object(budgets.Room, "_short", unbudgeted))


@_mutant
def any_machine_will_do(stack: ExitStack) -> None:
    """The first instance in the provider's list is replaced."""

    async def first(self: Any, node: Any) -> None:
        pool = self._pool(node)
        provider = self._providers[pool.provider]
        instances = (await provider.look(pool)).instances
        if instances:
            await provider.delete(pool, instances[0].id, replace=True)

    stack.enter_context(patch.object(ByProvider, "replace", first))


@_mutant
def what_is_ill_is_replaced(stack: ExitStack) -> None:
    """The first thing to try is another machine."""
    further = ladder.further

    def at_once(rung: Any, *, gpus: bool, alive: bool, replaceable: bool) -> Any:
        tried = further(rung, gpus=gpus, alive=alive, replaceable=replaceable)
        return "Replace" if replaceable and rung in ("Drain", "ResetGPU") else tried

    stack.enter_context(patch.object(ladder, "further", at_once))


@_mutant
def who_is_not_reached_is_dead(stack: ExitStack) -> None:
    """Reports of peers are enough; the Lease is not read."""

    def unreached(names: Any, silences: Any, reports: Any, now: float, *others: Any) -> dict[str, Death]:
        return dict.fromkeys(names, Death("its Lease is not renewed, it is assumed", now))

    stack.enter_context(patch.object(controller, "dead", unreached))


@_mutant
def partitions_are_deaths(stack: ExitStack) -> None:
    """However many nodes are suspects at once, each is looked at alone."""
    suspects = controller.suspects

    def all_of_them(reports: Any, known: Any, config: Any) -> Any:
        return suspects(reports, known, replace(config, nodes=1000))

    stack.enter_context(patch.object(controller, "suspects", all_of_them))


@_mutant
def a_word_is_kept_once(stack: ExitStack) -> None:
    """A node that a person wants out of use goes out of it, and is let back by the first test it passes."""
    asks = record.asks

    def until_it_is_out(session: Any, action: Any) -> bool:
        return asks(session, action) and not (action == "Quarantine" and record.is_quarantined(session.status))

    stack.enter_context(patch.object(record, "asks", until_it_is_out))
    stack.enter_context(patch.object(exits, "asks", until_it_is_out))


@_mutant
def an_old_pass_is_what_people_ask_for(stack: ExitStack) -> None:
    """Who asks for a node's release gets it by a test from before."""
    tested_after = exits.tested_after

    def before(session: Any, evidence: Any) -> float:
        request = session.spec.request
        if request is not None and request.action == "Release":
            return 0.0
        return float(tested_after(session, evidence))

    for module in (exits, cache):
        stack.enter_context(patch.object(module, "tested_after", before))
