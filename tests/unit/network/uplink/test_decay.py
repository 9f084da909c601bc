from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from muster.network.uplink.decay import decayed_total, limits
from muster.network.uplink.wire import Pair, Rates

VALID_S, DECAY_S = 30.0, 60.0
RATES = Rates(
    7, "e", 1, VALID_S, DECAY_S, {"a": Pair(600, 10), "b": Pair(300, 20)}, Pair(100, 10), Pair(200, 400)
)  # fmt: skip


def test_limits_stay_while_the_lease_is_valid() -> None:
    assert limits(RATES, -1.0, ["a"]) == (RATES.pods, RATES.rest)


def test_high_limits_fall_to_the_static_share_in_proportion() -> None:
    pods, rest = limits(RATES, DECAY_S / 2, ["a", "b"])
    assert (pods["a"].in_bps, pods["b"].in_bps, rest.in_bps) == (360, 180, 60)
    pods, rest = limits(RATES, DECAY_S, ["a", "b"])
    assert (pods["a"].in_bps, pods["b"].in_bps, rest.in_bps) == (120, 60, 20)


def test_low_limits_rise_only_after_all_high_ones_have_fallen() -> None:
    pods, rest = limits(RATES, DECAY_S + VALID_S - 0.1, ["a", "b"])
    assert (pods["a"].out_bps, pods["b"].out_bps, rest.out_bps) == (10, 20, 10)


def test_pods_that_are_there_share_the_static_share_in_the_end() -> None:
    pods, rest = limits(RATES, DECAY_S + VALID_S, ["b", "c", "d"])
    assert pods == {"b": Pair(50, 100), "c": Pair(50, 100), "d": Pair(50, 100)}
    assert rest == Pair(50, 100)


nodes = st.lists(st.tuples(st.integers(0, 1000), st.floats(0, VALID_S)), min_size=1, max_size=8)


@settings(max_examples=300, deadline=None)
@given(nodes, st.floats(0, 200))
def test_sum_stays_within_the_budget_while_nodes_decay_alone(found: list[tuple[int, float]], now_s: float) -> None:
    """Nodes whose leases end at different moments of one lease's length, as when the hub dies."""
    budget = max(len(found), sum(last for last, _ in found))
    static = budget // len(found)
    total = sum(decayed_total(last, static, now_s - ends_s, VALID_S, DECAY_S) for last, ends_s in found)
    assert total <= budget
