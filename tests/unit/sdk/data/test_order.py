"""The order of samples: a function of seed, epoch and position, whatever the number of ranks."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.sdk.data.order import Order, bounds, window_samples

COUNTS = st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any)


@st.composite
def orders(draw: st.DrawFn) -> Order:
    counts = draw(COUNTS)
    windows = [draw(st.integers(1, 12)) for _ in counts]
    batch = draw(st.integers(1, 40))
    return Order(counts, windows, draw(st.integers(0, 99)), batch, draw(st.integers(1, 50)), draw(st.booleans()))


@settings(max_examples=200, deadline=None)
@given(orders(), st.integers(0, 5))
def test_each_epoch_holds_every_sample_once(order: Order, epoch: int) -> None:
    places = [order.locate(position) for position in range(epoch * order.samples, (epoch + 1) * order.samples)]
    assert {place.epoch for place in places} == {epoch}
    found = sorted((place.shard, place.sample) for place in places)
    assert len(set(found)) == order.samples
    assert all(0 <= sample < order._counts[shard] for shard, sample in found)


@settings(max_examples=100, deadline=None)
@given(orders(), st.lists(st.integers(0, 2000), max_size=30))
def test_a_position_has_the_same_sample_whatever_was_asked_before(order: Order, positions: list[int]) -> None:
    fresh = [
        Order(order._counts, order._windows, order._seed, order.batch, order._lanes, order._shuffle).locate(position)
        for position in positions
    ]
    assert [order.locate(position) for position in positions] == fresh


@given(st.integers(1, 50), st.integers(1, 80), st.integers(1, 70), st.data())
def test_lanes_divide_a_range_without_gap(batch: int, lanes: int, world_size: int, data: st.DataObject) -> None:
    order = Order([100], [1], 0, batch, lanes, True)
    first, end = bounds(batch, data.draw(st.integers(0, world_size - 1)), world_size)
    ranges = order.lanes(first, end)
    assert [position for low, high in ranges for position in range(low, high)] == list(range(first, end))


@given(st.integers(0, 1000), st.integers(1, 60))
def test_parts_of_a_batch_are_contiguous_and_differ_by_at_most_one(total: int, parts: int) -> None:
    ranges = [bounds(total, part, parts) for part in range(parts)]
    assert [position for low, high in ranges for position in range(low, high)] == list(range(total))
    sizes = {high - low for low, high in ranges}
    assert max(sizes) - min(sizes) <= 1


def test_order_of_version_1_never_changes() -> None:
    """A new Muster must continue a stream that an older one began."""
    order = Order([50, 0, 7, 120, 33], [16, 1, 3, 64, 33], 42, 24, 8, True)
    text = ",".join(f"{place.shard}.{place.sample}" for place in map(order.locate, range(600)))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "5e720cf6fc7ce5f8"


def test_order_without_shuffle_is_that_of_the_index() -> None:
    order = Order([3, 0, 2], [1, 1, 1], 5, 2, 64, False)
    assert [tuple(order.locate(position)[:3]) for position in range(7)] == [
        (0, 0, 0),
        (0, 0, 1),
        (0, 0, 2),
        (0, 2, 0),
        (0, 2, 1),
        (1, 0, 0),
        (1, 0, 1),
    ]


def test_seeds_and_epochs_have_different_orders() -> None:
    def epoch(seed: int, number: int) -> list[tuple[int, int]]:
        order = Order([40] * 10, [20] * 10, seed, 16, 4, True)
        places = map(order.locate, range(number * 400, (number + 1) * 400))
        return [(place.shard, place.sample) for place in places]

    found = [epoch(1, 0), epoch(1, 1), epoch(2, 0)]
    assert sorted(found[0]) == sorted(found[1]) == sorted(found[2])
    assert found[0] != found[1] != found[2] != found[0]


@pytest.mark.parametrize("world_size", [4, 8, 16])
def test_a_rank_reads_its_share_of_the_shards(world_size: int) -> None:
    """Without lanes, each rank would read all 160 shards."""
    order = Order([100] * 160, [20] * 160, 1, 64, 16, True)
    for rank in range(world_size):
        first, end = bounds(64, rank, world_size)
        shards = {order.locate(b * 64 + i).shard for b in range(16000 // 64) for i in range(first, end)}
        assert len(shards) <= 160 // world_size + 16 // world_size


def test_a_batch_is_drawn_from_as_many_shards_as_there_are_lanes() -> None:
    order = Order([100] * 160, [20] * 160, 1, 64, 16, True)
    assert len({order.locate(position).shard for position in range(640, 704)}) >= 15


@pytest.mark.parametrize(
    ("size_bytes", "samples", "window"),
    [(1 << 30, 10_000, 39), (100, 50, 4096), (1 << 30, 10, 1), (0, 0, 1), (4 << 20, 64, 64)],
)
def test_windows_hold_about_4_mib(size_bytes: int, samples: int, window: int) -> None:
    assert window_samples(size_bytes, samples) == window
