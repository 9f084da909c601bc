"""The sums behind a report: a job's work and loss, the cluster over time, the room on nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.sim.replay.job import Job, NodeShape, Shape
from muster.sim.replay.report import percentile
from muster.sim.replay.room import InvariantBroken, Room
from muster.sim.replay.run import Run
from muster.sim.replay.series import Series


def run_of(run_s: float) -> Run:
    return Run(Job("j", 0.0, run_s, 2, Shape(8), gang=True))


def test_an_interrupted_job_does_again_what_it_did_since_its_checkpoint() -> None:
    run = run_of(1000.0)
    assert run.go(50.0, 30.0) == 1050.0, "the first start has no delay"
    run.interrupt(50.0 + 450.0, checkpoint_s=200.0)
    assert (run.interruptions, run.redone_s, run.done_s) == (1, 50.0, 400.0)
    run.interrupt(510.0, checkpoint_s=200.0)
    assert (run.interruptions, run.attempt) == (1, 2), "it was stopped already"
    assert run.go(600.0, 30.0) == 600.0 + 30.0 + 600.0
    run.interrupt(610.0, checkpoint_s=200.0)
    assert (run.redone_s, run.done_s) == (50.0, 400.0), "it had not gone on yet"
    run.go(700.0, 0.0)
    assert run.work_s(800.0) == 500.0


def test_without_checkpoint_intervals_nothing_is_done_again() -> None:
    run = run_of(1000.0)
    run.go(0.0, 0.0)
    run.interrupt(333.0, checkpoint_s=0.0)
    assert (run.redone_s, run.done_s) == (0.0, 333.0)


@given(
    st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 100)), min_size=1, max_size=30),
    st.integers(1, 17),
)
def test_means_over_intervals_add_up_to_the_whole(changes: list[tuple[float, int]], intervals: int) -> None:
    changes = sorted(changes)
    end_s = changes[-1][0] + 10.0
    series = Series()
    for now, busy in changes:
        series.add(now, busy, 0, 0, 0, 0, 0, 0, False)
    ends = [now for now, _ in changes[1:]] + [end_s]
    exact = sum(busy * (end - now) for (now, busy), end in zip(changes, ends, strict=True))
    total = sum(each["busy"] for each in series.means(end_s, intervals)) * end_s / intervals
    assert total == pytest.approx(exact, rel=1e-9, abs=1e-6)


def test_idle_while_waiting_counts_only_while_a_job_waits() -> None:
    series = Series()
    series.add(0.0, 0, 0, 0, 8, 0, 0, 0, False)
    series.add(25.0, 0, 0, 0, 8, 16, 1, 0, False)
    series.add(75.0, 0, 0, 0, 8, 16, 1, 0, True)
    (mean,) = series.means(100.0, 1)
    assert (mean["idle"], mean["idle_while_waiting"], mean["waiting_gpus"]) == (8.0, 6.0, 12.0)
    assert mean["idle_while_restartable_fits"] == 2.0


def test_percentiles_are_of_values_that_occurred() -> None:
    values = [float(number) for number in range(1, 11)]
    assert [percentile(values, percent) for percent in (50, 90, 99)] == [5.0, 9.0, 10.0]
    assert percentile([], 50) is None


def test_room_counts_split_and_idle_gpus() -> None:
    room = Room([NodeShape("a", 8), NodeShape("b", 8)])
    room.take("a", Shape(2), "p")
    assert (room.busy, room.idle, room.split) == (2, 14, 6)
    room.set_down("a", True)
    assert (room.busy, room.idle, room.split, room.down) == (2, 8, 0, 8)
    room.give("a", Shape(2))
    room.set_down("a", False)
    assert (room.busy, room.idle, room.split, room.down) == (0, 16, 0, 0)


def test_room_for_a_job_is_on_as_many_usable_nodes_as_it_has_members() -> None:
    room = Room([NodeShape("a", 8), NodeShape("b", 8), NodeShape("c", 4)])
    assert room.has_room(Shape(8), 2)
    assert not room.has_room(Shape(8), 3)
    room.take("a", Shape(2), "p")
    assert [room.has_room(Shape(8), 1), room.has_room(Shape(8), 2), room.has_room(Shape(6), 2)] == [True, False, True]
    room.set_down("b", True)
    assert [room.has_room(Shape(8), 1), room.has_room(Shape(6), 1), room.has_room(Shape(4), 2)] == [False, True, True]
    room.give("a", Shape(2))
    room.set_down("b", False)
    assert room.has_room(Shape(8), 2)


def test_room_for_a_job_counts_cpu_memory_and_gpu_model() -> None:
    room = Room([NodeShape("a", 8, 4000, 512, "T4")])
    room.take("a", Shape(1, cpu_milli=3000), "p")
    assert room.has_room(Shape(1, cpu_milli=1000, memory_mib=512, models=("T4",)), 1)
    for shape in (Shape(1, cpu_milli=1001), Shape(1, memory_mib=513), Shape(1, models=("G2",))):
        assert not room.has_room(shape, 1)
    room.set_down("a", True)
    assert not room.has_room(Shape(1, cpu_milli=1000), 1)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (Shape(9), "over its capacity"),
        (Shape(1, cpu_milli=4001), "over its capacity"),
        (Shape(1, memory_mib=513), "over its capacity"),
        (Shape(1, models=("G2",)), "whose GPUs are T4"),
    ],
)
def test_never_a_pod_where_it_does_not_fit(shape: Shape, said: str) -> None:
    room = Room([NodeShape("a", 8, 4000, 512, "T4")])
    with pytest.raises(InvariantBroken, match=said):
        room.take("a", shape, "p")


def test_never_a_pod_on_a_failed_node() -> None:
    room = Room([NodeShape("a", 8)])
    room.set_down("a", True)
    with pytest.raises(InvariantBroken, match="which has failed"):
        room.take("a", Shape(1), "p")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["take", "give", "down", "up"])), max_size=40))
def test_gpus_in_use_idle_and_down_never_add_up_to_anything_but_all(steps: list[tuple[str, str]]) -> None:
    room = Room([NodeShape("a", 8), NodeShape("b", 4), NodeShape("c", 2)])
    on: dict[str, int] = dict.fromkeys("abc", 0)
    down: set[str] = set()
    size = {"a": 8, "b": 4, "c": 2}
    for name, what in steps:
        if what == "take" and name not in down and on[name] + 2 <= size[name]:
            room.take(name, Shape(2), "p")
            on[name] += 2
        elif what == "give" and on[name]:
            room.give(name, Shape(2))
            on[name] -= 2
        elif what in ("down", "up"):
            room.set_down(name, what == "down")
            (down.add if what == "down" else down.discard)(name)
        up = [each for each in "abc" if each not in down]
        assert room.busy == sum(on.values())
        assert room.down == sum(size[each] for each in down)
        assert room.idle == sum(size[each] - on[each] for each in up)
        assert room.split == sum(size[each] - on[each] for each in up if on[each])
