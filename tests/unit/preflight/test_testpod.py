"""The pod of a test, where it depends on the configuration."""

from __future__ import annotations

from typing import Any

import pytest

from muster.fleet.preflight.config import PreflightConfig, parse_config
from muster.fleet.preflight.testpod import TestRecord as MadeFor
from muster.fleet.preflight.testpod import made_with, manifest


def spec(config: PreflightConfig) -> dict[str, Any]:
    pod = manifest(
        MadeFor("a", "uid-a", "boot-1", 1, "nvidia"), 8, config, namespace="muster-system", image="none",
        team_key="muster.dev/team", retest=False,
    )  # fmt: skip
    found: dict[str, Any] = pod["spec"]
    return found


@pytest.mark.parametrize("name", ["", "nvidia"])
def test_the_container_runtime_that_brings_the_driver_is_named_where_it_is_not_the_default(name: str) -> None:
    text = f"image: tests:1\nruntimeClass: '{name}'\n"
    assert spec(parse_config(text)).get("runtimeClassName", "") == name


def test_test_that_could_not_start_is_recreated_for_another_runtime() -> None:
    assert made_with(PreflightConfig(image="i")) != made_with(PreflightConfig(image="i", runtime_class="nvidia"))
