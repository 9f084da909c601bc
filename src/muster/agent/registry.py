"""Creates the checks of this node from their settings; checks that cannot be created become findings."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from muster.agent.check import Check, Host, Setup
from muster.agent.settings import AgentSettings, CheckSettings


class Trouble(NamedTuple):
    """A check that could not be created, reported as a finding of the check `agent`."""

    check: str
    code: str
    message: str


def make_checks(
    node: str, settings: AgentSettings, host: Host, known: Mapping[str, str]
) -> tuple[list[Check], list[Trouble]]:
    """Create all checks that are not disabled.

    Args:
        node: name of the node.
        settings: which checks, and their settings.
        host: the location of the node's files.
        known: MODULE:FUNCTION by name.
    """
    checks: list[Check] = []
    troubles = [
        Trouble(
            name, "unknown", "the settings name a check that this agent does not have, so its faults are not detected"
        )
        for name, each in settings.checks.items()
        if each.enabled and name not in known
    ]
    for name, where in known.items():
        wanted = settings.checks.get(name, CheckSettings())
        if not wanted.enabled:
            continue
        setup = Setup(
            node=node,
            host=host,
            period_s=wanted.period_seconds,
            timeout_s=wanted.timeout_seconds,
            options=wanted.options,
        )
        try:
            check = _make(where)(setup)
        except Exception as error:  # a broken check or wrong settings: the other checks are still created
            troubles.append(Trouble(name, "failed", f"it cannot be made: {type(error).__name__}: {error}"))
            continue
        if check is not None:
            checks.append(check)
    return checks, troubles


def _make(where: str) -> Any:
    module, _, function = where.partition(":")
    return getattr(import_module(module), function)
