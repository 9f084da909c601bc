"""Limits the examples of properties, for a quick first answer: `make test` tries all examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import settings

_SETTINGS = "_hypothesis_internal_use_settings"
"""Where hypothesis keeps the settings of a property. Its own plugin for pytest reads them there too."""


def limit_examples(items: Iterable[pytest.Item], most: int) -> None:
    """Let each property and each state machine among the tests try at most so many examples."""
    for item in items:
        if isinstance(item, pytest.Function):
            limit_property(item.function, most)
            limit_machine(item.cls, most)


def limit_property(test: Callable[..., object], most: int) -> None:
    """Let a property try at most so many examples. Other functions stay as they are."""
    own = getattr(test, _SETTINGS, None)
    if isinstance(own, settings):
        setattr(test, _SETTINGS, _limited(own, most))


def limit_machine(case: type | None, most: int) -> None:
    """Let the `TestCase` of a state machine try at most so many examples. Other classes stay as they are."""
    own = getattr(case, "settings", None)
    if case is not None and isinstance(own, settings):
        setattr(case, "settings", _limited(own, most))  # noqa: B010


def _limited(own: settings, most: int) -> settings:
    return settings(own, max_examples=min(own.max_examples, most))
