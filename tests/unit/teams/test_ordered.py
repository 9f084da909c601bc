"""The smallest names, against sorting them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from muster.teams.sorted_names import Names

steps = st.tuples(st.sampled_from(["add", "discard", "smallest"]), st.integers(0, 40))


@given(st.lists(steps, max_size=300))
def test_the_smallest_are_those_of_the_sorted_names(sequence: list[tuple[str, int]]) -> None:
    names, model = Names(), {f"n{number:02}" for number in range(0, 40, 3)}
    for name in model:
        names.add(name)
    for what, number in sequence:
        name = f"n{number:02}"
        if what == "add":
            names.add(name)
            model.add(name)
        elif what == "discard":
            names.discard(name)
            model.discard(name)
        else:
            assert names.smallest(number % 4) == sorted(model)[: number % 4]
        assert len(names) == len(model)
        assert (name in names) == (name in model)
    assert names.smallest(len(model)) == sorted(names) == sorted(model)


def test_names_that_come_and_go_leave_nothing_behind() -> None:
    names = Names()
    names.add("kept")
    for number in range(10_000):
        names.add(f"n{number}")
        names.discard(f"n{number}")
    assert names.smallest(1) == ["kept"]
    assert len(names._heap) < 1000
