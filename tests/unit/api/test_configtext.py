"""The ConfigMaps of the fleet: whatever a user writes there is read or refused, and never ends a controller."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from muster.api.configtext import ConfigTextError
from muster.fleet.balloons.config import parse_config as balloons
from muster.fleet.joins.config import parse_config as joins
from muster.fleet.scaling.config import parse_config


def scaling(text: str) -> Any:
    return parse_config(text, frozenset({"aws"}))


PARSERS: tuple[Callable[[str], Any], ...] = (balloons, joins, scaling)


@pytest.mark.slow
@given(st.text() | st.text(alphabet="{}[]:-,&*% \n\tabt019?|>!#'\"_xp"))
@example("pools: 2026-99-99")
@example("pools: !!int x")
@example("pools: 0x_")
@example("pools: !!timestamp x")
@example("pools: &a [*a]")
@example("- " * 5000)
def test_no_text_does_anything_but_parse_or_be_refused(text: str) -> None:
    for parse in PARSERS:
        with suppress(ConfigTextError):
            parse(text)


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2026-99-99", "line 2: not YAML: 2026-99-99 looks like a timestamp, but is not valid; mend it"),
        ("a: 1\nb: {c: 1, d: {e: 1, e: 2}}\na: 2", "line 2: e is there twice; keep one\nline 3: a is there twice"),
        ("a: 1\nb: \x07", "line 2: not YAML: character U+0007 is not allowed in YAML; mend it"),
        ("a: 1\n---\nb: 1", "line 2: not YAML: but found another document; mend it"),
    ],
)
def test_error_in_any_config_map_is_reported_by_line(parse: Callable[[str], Any], text: str, said: str) -> None:
    with pytest.raises(ConfigTextError) as caught:
        parse(text)
    assert str(caught.value).startswith(said)
