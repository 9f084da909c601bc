"""The checks of this node: made from their settings, and what could not be made, as findings."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from muster.agent.check import Check, Host, Setup
from muster.agent.settings import AgentSettings, CheckSettings


class Trouble(NamedTuple):
    """A check that there is not: what is said of it as a finding of the check `agent`."""

    check: str
    code: str
    message: str


def make_checks(
    node: str, settings: AgentSettings, host: Host, known: Mapping[str, str]
) -> tuple[list[Check], list[Trouble]]:
    """Make every check that is not switched off.

    Args:
        node: name of the node.
        settings: which, and how.
        host: where the node's files are.
        known: MODULE:FUNCTION by name.
    """
    checks: list[Check] = []
    troubles = [
        Trouble(
            name, "unknown", "the settings name a check that this agent does not know: what it looks at is not seen"
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
        except Exception as error:  # a broken check, or its settings: the others go on
            troubles.append(Trouble(name, "failed", f"it cannot be made: {type(error).__name__}: {error}"))
            continue
        if check is not None:
            checks.append(check)
    return checks, troubles


def _make(where: str) -> Any:
    module, _, function = where.partition(":")
    return getattr(import_module(module), function)
