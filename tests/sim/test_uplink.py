"""Issue 16 B: the uplink's budget in a fleet of simulated nodes, with delays, lost messages and a leader that dies."""

from __future__ import annotations

import gc

import pytest

from fuzz.uplink.run import UplinkScenario, simulate
from fuzz.uplink.scenarios import scenario_of
from muster.network.uplink import hub

SEEDS = (1, 13, 48, 85, 119, 1021)
"""Seeds that found faults while the hub was written."""


@pytest.mark.parametrize("seed", SEEDS)
def test_limits_never_exceed_the_budget_and_decay_without_a_leader(seed: int) -> None:
    outcome = simulate(scenario_of(seed))
    gc.collect()
    assert not outcome.violation, f"{outcome.violation}\nagain: python -m fuzz.uplink --seed {seed}"
    assert outcome.peak <= 1.02
    assert outcome.used >= 0.9, "a minute after the last fault the budget is used"


def test_agents_return_to_a_new_leader_at_a_limited_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """As 7,500 nodes do at 500 a second: each one needs a TLS handshake and a TokenReview."""
    monkeypatch.setattr(hub, "RECONNECTS_PER_S", 2)
    nodes = 40
    outcome = simulate(UplinkScenario(seed=10, nodes=nodes, churn_s=40.0, faults=0.0, lost=0.0, deaths=1))
    gc.collect()
    assert not outcome.violation, outcome.violation
    first = min(outcome.reviews)
    again = {second: count for second, count in outcome.reviews.items() if second > first + 10}
    assert sum(again.values()) >= nodes
    assert max(again.values()) <= 10


def test_200_nodes_share_fairly_and_use_an_idle_share_within_3_s() -> None:
    outcome = simulate(UplinkScenario(seed=16, churn_s=25.0))
    gc.collect()
    assert not outcome.violation, outcome.violation
    assert outcome.error_at(0.5) <= 0.03
    assert outcome.error_at(0.95) <= 0.12  # an idle demand keeps a tenth more than it uses
    assert outcome.used >= 0.95
    assert outcome.taken_s is not None
    assert outcome.taken_s <= 3.0
