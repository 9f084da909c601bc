"""The text that says what remediation may do."""

from __future__ import annotations

import pytest

from muster.api.configtext import ConfigTextError
from muster.fleet.remediation.config import RemediationConfig, parse_config


def test_without_a_text_it_only_observes() -> None:
    assert parse_config("").mode == "observe"
    assert parse_config("") == RemediationConfig()


def test_given_values_apply_and_the_rest_keeps_defaults() -> None:
    config = parse_config("mode: act\nworking: {all: 50%}\nbreaker: {share: 100%}\ndeadlines: {rebootSeconds: 60}\n")
    assert (config.mode, config.working.all, config.working.pool) == ("act", "50%", 10)
    assert (config.breaker.share, config.breaker.nodes, config.deadlines.reboot_s) == ("100%", 2, 60)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mode: act\nbreaker: {share: half}\n", "line 2: breaker.share: 'half' is neither"),
        ("working:\n  all: -1\n  pool: 101%\n", "line 2: working.all: -1 is not possible"),
        ("working:\n  all: 1\n  pool: 101%\n", "line 3: working.pool: '101%' is neither"),
        ("mode: acct\n", "line 1: mode: Invalid enum value 'acct'; did you mean act?"),
        ("mode: act\nmod: act\n", "line 2: mod: unknown field; did you mean mode?"),
        ("deadlines:\n  drainSeconds: 0\n", "line 2: deadlines.drainSeconds: 0 is not possible"),
        ("dead: {peers: 0}\n", "dead.peers"),
        ("mode: [act\n", "not YAML"),
    ],
)
def test_error_is_reported_with_its_line(text: str, says: str) -> None:
    with pytest.raises(ConfigTextError) as caught:
        parse_config(text)
    assert says in str(caught.value)
