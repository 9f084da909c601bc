"""Teams in tests of the scheduler: nodes they own, gangs of theirs, and gangs that borrow."""

from __future__ import annotations

from typing import Any

from muster.api.names import LABEL_BORROWED, LABEL_TEAM
from muster.scheduler.gangs.priority import JobFacts
from tests.unit.scheduler.world import World, node


def owned(world: World, team: str, *names: str, key: str = LABEL_TEAM, **options: Any) -> None:
    """Nodes with label and taint of the team; without owner if it is ""."""
    for name in names:
        taints = [{"key": key, "value": team, "effect": "NoSchedule"}] if team else []
        world.set_node(node(name, labels={key: team} if team else {}, taints=taints, **options))


def of_team(team: str, key: str = LABEL_TEAM) -> dict[str, Any]:
    """What admission gives the pods of a team: they go to its nodes only."""
    term = {"matchExpressions": [{"key": key, "operator": "In", "values": [team]}]}
    return {
        "tolerations": [{"key": key, "operator": "Equal", "value": team, "effect": "NoSchedule"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}},
    }


def borrower(key: str = LABEL_TEAM) -> dict[str, Any]:
    """What a borrower's pods have."""
    return {"tolerations": [{"key": key, "operator": "Exists", "effect": "NoSchedule"}]}


def add(
    world: World,
    name: str,
    size: int,
    team: str,
    *,
    borrows: bool = False,
    priority: int = 0,
    facts: JobFacts | None = None,
    key: str = LABEL_TEAM,
    **spec: Any,
) -> None:
    """A TrainingJob of a team, and its pods."""
    world.set_job(name, facts or world.jobs.get(f"uid-{name}") or JobFacts())
    kind = borrower(key) if borrows else of_team(team, key)
    for slot in range(size):
        world.add_pod(
            f"{name}-{slot}-{int(world.now)}",
            {"priority": priority, **kind, **spec},
            labels={
                "muster.dev/gang": name,
                "muster.dev/slot": str(slot),
                key: team,
                **({LABEL_BORROWED: "true"} if borrows else {}),
            },
            annotations={
                "muster.dev/gang-size": str(size),
                "muster.dev/gang-uid": f"uid-{name}",
                "muster.dev/attempt": str(int(world.now)),
            },
        )
    world.now += 1.0
