"""Reads the configuration of node health from a cluster, with its errors. A text with errors is not in force."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from muster.api.configtext import ConfigTextError
from muster.api.names import HEALTH_CONFIG_MAP, HEALTH_POLICY_KEY
from muster.cli.output import paint
from muster.fleet.health.policy import Policy
from muster.fleet.health.policyinuse import PolicyInUse
from muster.fleet.preflight import config as preflight
from muster.fleet.remediation import config as remediation

if TYPE_CHECKING:
    from muster.kube.client import Client
    from muster.kube.objects.core import ConfigMap


class ConfigProblem(msgspec.Struct, frozen=True, rename="camel"):
    """A text that is not in force: its ConfigMap, its key, and each error with its line."""

    config_map: str
    key: str
    problems: str


class HealthConfig(msgspec.Struct, frozen=True):
    """The health settings in the ConfigMaps.

    Attributes:
        policy: the cluster's policy; the default policy if the text is missing or not valid.
        problems: the errors of the texts.
        tests: the configuration of tests; None if tests are off or the text is not valid.
    """

    policy: Policy
    problems: tuple[ConfigProblem, ...] = ()
    tests: preflight.PreflightConfig | None = None


async def read_health_config(client: Client, namespace: str) -> HealthConfig:
    """Read the ConfigMaps of node health. Raises ApiError."""
    health, tests = await asyncio.gather(
        _found(client, HEALTH_CONFIG_MAP, namespace), _found(client, preflight.CONFIG_MAP, namespace)
    )
    return health_config(health, tests)


def health_config(health: ConfigMap | None, tests: ConfigMap | None) -> HealthConfig:
    """Parse the ConfigMaps as the controllers do."""
    use, problems, used = PolicyInUse(), list[ConfigProblem](), None
    text = health.data.get(HEALTH_POLICY_KEY, "") if health is not None else ""
    if text and not use.replace(text, f"{HEALTH_CONFIG_MAP}/{HEALTH_POLICY_KEY}"):
        problems.append(ConfigProblem(HEALTH_CONFIG_MAP, HEALTH_POLICY_KEY, use.problems))
    if health is not None:
        try:
            remediation.parse_config(health.data.get(remediation.CONFIG_KEY, ""))
        except ConfigTextError as error:
            problems.append(ConfigProblem(HEALTH_CONFIG_MAP, remediation.CONFIG_KEY, str(error)))
    if tests is not None:
        try:
            used = preflight.parse_config(tests.data.get(preflight.CONFIG_KEY, ""))
        except ConfigTextError as error:
            problems.append(ConfigProblem(preflight.CONFIG_MAP, preflight.CONFIG_KEY, str(error)))
    return HealthConfig(use.policy, tuple(problems), used)


def print_problems(problems: Sequence[ConfigProblem], namespace: str) -> None:
    """Print the problems of the configuration on stderr."""
    import sys

    for line in _lines(problems, namespace):
        click.echo(line if line.startswith(" ") else paint(line, "red", bold=True, stream=sys.stderr), err=True)


def _lines(problems: Sequence[ConfigProblem], namespace: str) -> Iterator[str]:
    for each in problems:
        yield f"NOT IN FORCE: {each.key} of ConfigMap {namespace}/{each.config_map} cannot be used"
        yield from (f"  {line}" for line in each.problems.splitlines())
        if each.key == HEALTH_POLICY_KEY:
            yield " the actions above are those of the default policy"
    if problems:
        yield " running controllers keep the last valid text; a controller that starts now has none"


async def _found(client: Client, name: str, namespace: str) -> ConfigMap | None:
    from muster.kube.errors import NotFound
    from muster.kube.objects.core import ConfigMap

    try:
        return await client.get(ConfigMap, name, namespace)
    except NotFound:
        return None
