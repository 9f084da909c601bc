from __future__ import annotations

import pytest

from muster.api.configtext import ConfigTextError
from muster.network.config import parse_config
from muster.network.uplink.settings import settings_of
from muster.network.uplink.wire import Pair


def test_budget_is_off_by_default() -> None:
    assert not parse_config("").uplink.enabled


def test_numbers_are_quantities_or_bits_per_second() -> None:
    config = parse_config("uplink: {enabled: true, budget: {in: 100G, out: 40000000000}, floor: {in: 500k}}").uplink
    settings = settings_of(config)
    assert settings.budget == Pair(100 * 10**9, 40 * 10**9)
    assert settings.floor == Pair(500_000, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("uplink: {enabled: true}", "line 1: uplink.budget: a budget is needed in both directions"),
        ("uplink: {enabled: true, budget: {in: 1G}}", "a budget is needed in both directions"),
        ("uplink: {budget: {in: lots, out: 1G}}", "write bits/s as 100G"),
        ("uplink: {budget: {in: -1, out: 1G}}", "the number is not possible"),
        ("uplink:\n  budget: {in: 1G, out: 1G}\n  floor: {in: 2G}", "line 3: uplink.floor: one node would get more"),
        ("uplink: {budget: {in: 1G, out: 1G}, staticShare: {out: 2G}}", "uplink.staticShare: one node would get more"),
        ("uplink: {teams: {a: 0}}", "uplink.teams.a: 0 is not possible"),
        ("uplink: {defaultWeight: -2}", "uplink.defaultWeight: -2 is not possible"),
        ("uplink: {leaseSeconds: 5}", "uplink.leaseSeconds: 5 is not possible"),
        ("uplink: {leaseSeconds: .nan}", "uplink.leaseSeconds: nan is not possible"),
        ("uplink: {decaySeconds: 0}", "uplink.decaySeconds: 0 is not possible"),
        ("uplink: {class: ''}", "uplink.class: the class has no name"),
        ("uplink: {budgets: {}}", "budgets"),
    ],
)
def test_errors_name_the_line_and_what_to_change(text: str, message: str) -> None:
    with pytest.raises(ConfigTextError) as error:
        parse_config(text)
    assert message in str(error.value)
