"""Teams, balloons, joins and scaling beside gangs: fixed seeds where every invariant holds, and mutants."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from fuzz.fleet.machines import own_source, read_source
from fuzz.modes import Mode
from muster.sim.replay.table import BadTrace
from tests.sim.caught import is_caught
from tests.sim.fleetmutants import FLEET_MUTANTS

OWN = Mode("python -m fuzz --fleet", own_source())
SEEDS = (0, 12, 27)
CATCHES = {
    "overrule_hands": 2,
    "erase_what_others_tainted": 1,
    "balloons_anywhere": 14,
    "grow_without_end": 1,
    "say_it_again": 2,
}
"""The seed that catches a mutant soonest, where it is not the first. Other controllers may need another."""

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(
    f"node-{number},{cpu},{memory},{gpus},{model}\n"
    for number, (cpu, memory, gpus, model) in enumerate(
        [(96000, 393216, 8, "G2")] * 6 + [(64000, 262144, 2, "P100")] * 4 + [(16000, 122880, 2, "P100")] * 4
    )
)
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
    + "".join(
        f"pod-{number},{2000 * (1 + number % 5)},{8192 * (1 + number % 3)},{1 + number % 2},1000,,"
        f"{'LS' if number % 3 else 'BE'},Running,{number},{number + 100 * (1 + number % 7)},{number}\n"
        for number in range(40)
    )
)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_invariant_holds(seed: int) -> None:
    outcome = OWN.run(seed)
    gc.collect()
    assert not outcome.violation, f"{outcome.violation}\nagain: {OWN.command} --seed {seed} --trace"


def test_nodes_and_pods_are_those_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "pods.csv").write_text(PODS)
    mode = Mode("", read_source(tmp_path / "nodes.csv", tmp_path / "pods.csv"))
    seen: dict[str, str] = {}

    def saw(now: float, client: str, request: object, code: int, body: bytes) -> None:
        for model in ("G2", "P100", "X8"):
            if f'"nvidia.com/gpu.product":"{model}"'.encode() in body:
                seen[model] = client

    outcome = mode.run(5, saw)
    gc.collect()
    assert not outcome.violation
    assert set(seen) == {"G2", "P100"}


def test_files_without_a_pool_are_refused(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("".join(NODES.splitlines(keepends=True)[:3]))
    (tmp_path / "pods.csv").write_text(PODS)
    with pytest.raises(BadTrace, match="no GPU model with 4 nodes"):
        read_source(tmp_path / "nodes.csv", tmp_path / "pods.csv")


@pytest.mark.parametrize("name", FLEET_MUTANTS)
def test_mutant_is_caught(name: str) -> None:
    with FLEET_MUTANTS[name]():
        for seed in dict.fromkeys([CATCHES.get(name, 0), *range(4)]):
            violation = OWN.run(seed).violation
            gc.collect()
            if is_caught(violation):
                return
    pytest.fail(f"no seed catches {name}")
