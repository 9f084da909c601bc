"""Rights once let go of are gone: what is left is one user and one capability."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from muster.agent.privilege import CAP_SYSLOG

UNPRIVILEGED_USER = 65532

PROGRAM = """
import os, sys
from muster.agent.privilege import drop_privileges
drop_privileges(int(sys.argv[1]))
for line in open("/proc/self/status"):
    print(line.strip())
for what in (lambda: os.setuid(0), lambda: os.setgroups([0]), lambda: os.chroot("/"), lambda: open("/etc/shadow")):
    try:
        what()
        print("Regained: yes")
    except PermissionError:
        pass
try:
    os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    print("Kmsg: readable")
except OSError as error:
    print(f"Kmsg: {error.strerror}")
"""


def after_letting_go() -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(UNPRIVILEGED_USER)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split(":", 1) for line in done.stdout.splitlines() if ":" in line)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to let go of")
def test_root_becomes_an_unprivileged_user_with_at_most_one_capability() -> None:
    said = {name: value.strip() for name, value in after_letting_go().items()}
    assert {number for name in ("Uid", "Gid") for number in said[name].split()} == {str(UNPRIVILEGED_USER)}
    assert said["NoNewPrivs"] == "1"
    for name in ("CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"):
        assert int(said[name], 16) & ~(1 << CAP_SYSLOG) == 0, name
    assert int(said["CapBnd"], 16) == 0
    assert "Regained" not in said
    if os.access("/dev/kmsg", os.R_OK) and int(said["CapEff"], 16):
        assert said["Kmsg"] == "readable"


@pytest.mark.skipif(os.geteuid() == 0, reason="root has something to let go of")
def test_unprivileged_process_can_gain_no_privilege() -> None:
    assert after_letting_go()["NoNewPrivs"].strip() == "1"
