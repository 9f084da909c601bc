"""Fixtures for every test."""

import pytest

from tests.support.waiting import TIMEOUT_S

pytest_plugins = ["tests.support.controlplane"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A wait ends before its test does: only the wait can say what it waited for."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(2 * TIMEOUT_S))
