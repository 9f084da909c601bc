"""The texts of the ConfigMaps."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping

import msgspec

from fuzz.fleet.shares import Shares
from muster.sim.replay.job import NodeShape

CLOUD_POOL = "c"
"""Label `pool` of all machines of the cloud."""
IDLE_S, COOL_DOWN_S, JOIN_TIMEOUT_S = 40, 20, 60


class ScaledPool(msgspec.Struct, frozen=True):
    """A pool of the cloud; `held`: its kubelets register with the taint of joining nodes."""

    name: str
    min: int
    max: int
    price: float
    held: bool


def teams_text(shares: Mapping[str, Shares], *, moving: bool = False) -> str:
    """Returns the ConfigMap's text with the shares of teams."""
    lines = ["runningGangs: Move"] if moving else []
    lines.append("allocations:")
    for pool, each in shares.items():
        amounts = {**each.count, **{team: f"{part}%" for team, part in each.percent.items()}}
        lines += [f"- {{nodeSelector: {{pool: {pool}}}, team: {team}, amount: {n}}}" for team, n in amounts.items()]
    return "\n".join(lines) + "\n"


def scaling_text(pools: tuple[ScaledPool, ...], machine: NodeShape) -> str:
    """Pools of the cloud."""
    capacity = {"cpu": f"{machine.cpu_milli}m", "memory": f"{machine.memory_mib}Mi", "nvidia.com/gpu": machine.gpus}
    labels = {"pool": CLOUD_POOL, "nvidia.com/gpu.product": machine.model}
    made = [
        {
            "name": pool.name,
            "provider": "simulated",
            "group": pool.name,
            "min": pool.min,
            "max": pool.max,
            "price": pool.price,
            "idleSeconds": IDLE_S,
            "coolDownSeconds": COOL_DOWN_S,
            "joinTimeoutSeconds": JOIN_TIMEOUT_S,
            "template": {"labels": labels, "capacity": capacity},
        }
        for pool in pools
    ]
    return json.dumps({"pools": made})


def balloons_text(rng: random.Random, kinds: Mapping[str, NodeShape]) -> str:
    """Balloons of some pools, on nodes of teams as well or not."""
    pools = []
    for name, shape in kinds.items():
        if rng.random() < 0.4:
            continue
        tolerations = [{"key": "muster.dev/team", "operator": "Exists"}] * (rng.random() < 0.5)
        pools.append(
            {
                "name": name,
                "nodeSelector": {"pool": name},
                "replicas": rng.randint(1, 8),
                "resources": {"nvidia.com/gpu": shape.gpus},
                "tolerations": tolerations,
            }
        )
    return json.dumps({"pools": pools})
