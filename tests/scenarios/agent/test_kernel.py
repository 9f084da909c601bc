"""The kernel of this machine: a real fault is seen on /dev/kmsg, and what programs write there is none."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from muster.embedded.kubelet.containers.cgroups import ControlGroups
from tests.scenarios.agent.conftest import XID, Agents
from tests.support.controlgroups import need_control_groups
from tests.support.waiting import until

pytestmark = pytest.mark.slow

KMSG = Path("/dev/kmsg")
_EATS = """
import sys
for file in sys.argv[1:]:
    open(file, "w").write("0")
held = []
while True:
    held.append(b"x" * (1 << 20))
"""


def say_as_a_program(message: str) -> None:
    """Write into the kernel's log; the kernel notes that it was no part of itself."""
    KMSG.write_text(f"<0>{message}\n")


def run_out_of_memory() -> None:
    """Have the kernel kill a process of ours for want of memory."""
    groups = ControlGroups(uuid.uuid4().hex, "kernel")
    group = groups.container("eats", 32 << 20, 0)
    try:
        done = subprocess.run([sys.executable, "-S", "-c", _EATS, *group.join], timeout=60, check=False)
        assert done.returncode < 0
    finally:
        group.remove()
        groups.remove()


async def test_a_fault_of_this_machines_kernel_is_found_and_what_a_program_writes_is_none(agents: Agents) -> None:
    if not os.access(KMSG, os.R_OK | os.W_OK):
        pytest.skip("/dev/kmsg may not be read and written here")
    need_control_groups()
    machine = await agents.machine()
    machine.settings["checks"] = {"kernel-log": {"periodSeconds": 0.2}}
    (machine.folder / "dev").mkdir()
    (machine.folder / "dev/kmsg").symlink_to(KMSG)
    began = datetime.now(UTC) - timedelta(seconds=30)  # the kernel's clock is not quite ours
    await agents.start(machine)
    say_as_a_program(XID)
    run_out_of_memory()

    async def killed() -> bool:
        findings = (await agents.health(machine.node)).findings
        return any((each.check, each.code) == ("memory", "oom-cgroup") and each.last_time > began for each in findings)

    await until("the kernel's own words are found", killed)
    assert "79" not in {each.code for each in (await agents.health(machine.node)).findings}
