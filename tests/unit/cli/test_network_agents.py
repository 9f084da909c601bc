"""Answers of network agents that cannot be read as a page."""

from __future__ import annotations

import pytest

from muster.cli.network.agents import Answer
from muster.network.addresses.page import AddressesPage


@pytest.mark.parametrize("page", [b"", b"[]", b'{"node": "\xff"}'], ids=["empty", "other", "not UTF-8"])
def test_answer_that_is_not_the_page_becomes_a_problem(page: bytes) -> None:
    found, problem = Answer("worker-1", page, "").decoded(AddressesPage, "a page of addresses")
    assert found is None
    assert problem.startswith("its answer is not a page of addresses: ")


def test_problem_of_an_agent_is_kept() -> None:
    assert Answer("worker-1", b"{}", "it does not run").decoded(AddressesPage, "x") == (None, "it does not run")
