"""Configuration of preflight: key `preflight.yaml` of the ConfigMap `muster-preflight`; no tests without it.

image: registry.example.com/muster-gputest:1   # built from deploy/Dockerfile.gputest, or your own
pullPolicy: IfNotPresent
runAsUser: 65532           # 0: root; null: the platform's choice
runtimeClass: ""           # such as nvidia, if NVIDIA's container runtime is not the nodes' default
backend: nvidia            # of muster.gputest; cpu:8 for nodes with simulated GPUs
levels: {boot: 1, retest: 2, suspect: 2}       # boot: before work; suspect: in quarantine or under suspicion
atOnce: 50                 # the most tests at the same time
retests: {everyHours: 168, atOnce: 5}          # of idle nodes, at balloon priority; atOnce 0: none
startSeconds: 1800         # limit for the start of a test, including the pull of a large image
tolerations: []            # for permanent taints of GPU nodes, besides Muster's own and nvidia.com/gpu
resources: {cpu: "4", memory: 32Gi}            # requests, in addition to all GPUs of the node
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
import yaml

from muster.api.configschema import Positive, Whole, schema
from muster.api.configtext import ConfigText
from muster.api.trust import GPU
from muster.fleet.podtext import TolerationText, wrong_quantity, wrong_toleration
from muster.gputest.backend import check_name
from muster.kube.objects.struct import KubeStruct

CONFIG_MAP = "muster-preflight"
CONFIG_KEY = "preflight.yaml"
REQUIRED_KEY = "required"
"""Key of the ConfigMap: `true` if the scheduler requires tests. Only programs outside Muster read it."""
PAGE = "docs/preflight.md"

Level = Literal[1, 2, 3]


class _Text(KubeStruct, forbid_unknown_fields=True):
    """Base of the YAML structs: field names are in camel case, and unknown fields are refused."""


class Levels(_Text):
    """The levels of tests."""

    boot: Level = 1
    retest: Level = 2
    suspect: Level = 2


class Retests(_Text):
    """The interval and number of tests of idle nodes."""

    every_hours: Annotated[float, schema(minimum=1, maximum=100_000)] = 168.0
    at_once: Whole = 5


class PreflightConfig(_Text):
    """The configuration of preflight."""

    image: str = ""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    run_as_user: Whole | None = 65532
    runtime_class: str = ""
    backend: Annotated[str, schema(pattern="^(nvidia|cpu(:[0-9]+)?)$")] = "nvidia"
    levels: Levels = Levels()
    at_once: Positive = 50
    retests: Retests = Retests()
    start_s: Annotated[float, schema(minimum=10, maximum=86_400)] = msgspec.field(default=1800.0, name="startSeconds")
    tolerations: tuple[Annotated[TolerationText, schema(required=["key"])], ...] = ()
    resources: dict[str, str | int | float] = msgspec.field(default_factory=lambda: {"cpu": "4", "memory": "32Gi"})


@functools.lru_cache(maxsize=8)
def parse_config(text: str | yaml.Node, file: str = "") -> PreflightConfig:
    """Parse the text; `file` is its file, if any. Raises ConfigTextError with every problem.

    Cached, because the controller calls it on every pass and parsing YAML takes milliseconds.
    """
    read = ConfigText(text, PreflightConfig, PAGE, file)
    read.check(_problems(read.value))
    return read.value


def _problems(config: PreflightConfig) -> Iterator[tuple[str, str]]:
    wrong = check_name(config.backend)
    if wrong:
        yield "$.backend", f"{wrong}; write nvidia"
    if not config.image and config.backend == "nvidia":
        yield "$.image", "missing; name an image with muster[gputest-nvidia] in it (deploy/Dockerfile.gputest)"
    if config.run_as_user is not None and config.run_as_user < 0:
        yield "$.runAsUser", f"{config.run_as_user} is not possible; write 0 or more, or null"
    if config.at_once < 1:
        yield "$.atOnce", f"{config.at_once} is not possible; write 1 or more"
    if config.retests.at_once < 0:
        yield "$.retests.atOnce", f"{config.retests.at_once} is not possible; write 0 or more"
    if not 1 <= config.retests.every_hours <= 100_000:
        yield "$.retests.everyHours", f"{config.retests.every_hours:g} is not possible; write 1 or more"
    if not 10 <= config.start_s <= 86_400:
        yield "$.startSeconds", f"{config.start_s:g} is not possible; write 10 to 86400"
    for index, toleration in enumerate(config.tolerations):
        yield from ((f"$.tolerations[{index}]", what) for what in wrong_toleration(toleration))
    for resource, amount in config.resources.items():
        yield from ((f"$.resources.{resource}", what) for what in wrong_quantity(amount))
        if resource == GPU:
            yield f"$.resources.{resource}", "tests have all GPUs of their node; leave it out"
