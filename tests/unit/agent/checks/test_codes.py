"""Whatever a check can say is in the shipped policy: none of it is unknown there."""

from __future__ import annotations

import pytest

from muster.agent.checks import disks, gpusample, kubelet, maintenance, network, ports, reach
from muster.fleet.health import mesh
from muster.fleet.health.policy import UNKNOWN_CODE
from muster.fleet.health.policytext import default_policy

MODULES = (disks, gpusample, kubelet, maintenance, mesh, network, ports, reach)
CODES = sorted(set().union(*(module.CODES for module in MODULES)))


@pytest.mark.parametrize(("check", "code"), CODES)
def test_a_code_that_a_check_can_say_has_a_line_of_its_own(check: str, code: str) -> None:
    name, entry, known = default_policy().entry(check, code)
    assert (name, known) == (f"{check}/{code}", code != UNKNOWN_CODE)  # which is loud
    assert entry.what
    assert entry.where.startswith("catalogue.yaml:")
