"""`pytest --most-examples`: properties and state machines try fewer examples."""

from __future__ import annotations

import unittest
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.support.fewexamples import limit_machine, limit_property


@pytest.mark.parametrize(("most", "expected"), [(5, 5), (1000, 40)])
def test_property_tries_at_most_as_many_examples_as_asked_for(most: int, expected: int) -> None:
    tried = []

    @settings(max_examples=40, database=None)
    @given(st.integers())
    def holds(number: int) -> None:
        tried.append(number)

    limit_property(holds, most)
    holds()
    assert len(tried) == expected


def test_state_machine_tries_at_most_as_many_examples_as_asked_for() -> None:
    made = []

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        @rule(number=st.integers())
        def step(self, number: int) -> None:
            pass

    case: Any = Machine.TestCase
    case.settings = settings(max_examples=40, stateful_step_count=5, database=None)
    limit_machine(case, 5)
    assert unittest.TextTestRunner().run(case("runTest")).wasSuccessful()
    assert len(made) == 5


def test_other_tests_stay_as_they_are() -> None:
    limit_property(test_other_tests_stay_as_they_are, 1)
    limit_machine(unittest.TestCase, 1)
    limit_machine(None, 1)
    assert not hasattr(unittest.TestCase, "settings")
