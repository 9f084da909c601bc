"""Whatever a check can say is in the shipped policy: none of it is unknown there."""

from __future__ import annotations

import pytest

from muster.agent.checks import disks, gpusample, ports
from muster.fleet.health.policytext import default_policy

CODES = sorted(disks.CODES | gpusample.CODES | ports.CODES)


@pytest.mark.parametrize(("check", "code"), CODES)
def test_a_code_that_a_check_can_say_has_a_line_of_its_own(check: str, code: str) -> None:
    name, entry, known = default_policy().entry(check, code)
    assert (name, known) == (f"{check}/{code}", True)
    assert entry.what
    assert entry.where.startswith("catalogue.yaml:")
