"""Each backend works with exactly the capabilities that it lists, and not without one of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from muster.network.traffic.backends.choice import CAPABILITIES, EBPF
from tests.support.networknamespaces import Network
from tests.support.trafficbackends import need_backend
from tests.support.unifiedgroups import unified_group, unified_root
from tests.system.network.test_bpf import need_bpf

ROOT = Path(__file__).parents[3]
PROGRAM = """
import ctypes, json, sys
from pathlib import Path
from muster.kube.privilege import drop_privileges
from muster.network.traffic.backend import Subject
from muster.network.traffic.backends.choice import choose
from muster.network.traffic.backends.ebpf import EbpfBackend
from muster.network.traffic.classes import Classes
from muster.network.traffic.interfaces import Interfaces
name, root, group, keep = sys.argv[1:]
backend = choose(name, Interfaces(("eth0",)), cgroup_root=Path(root))
if name == "ebpf":
    libc = ctypes.CDLL(None)
    kind = libc.syscall(430, b"bpf", 1)
    libc.syscall(431, kind, 6, None, None, 0)
    pins = Path(f"/proc/self/fd/{libc.syscall(432, kind, 1, 0)}/traffic")
    backend = EbpfBackend(pins=pins, cgroup_root=Path(root), attach_to=Path(group))
drop_privileges(json.loads(keep))
backend.setup(Classes())
backend.put([Subject("uid-1", ("10.1.0.10", "fd00:1::a")), Subject("uid-2", cgroup=group + "/pod")])
print(len(backend.read()))
backend.teardown()
"""


def run(name: str, keep: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Set up, count for and tear down a backend with these capabilities only."""
    with Network() as network, unified_group() as group:
        (group / "pod").mkdir()
        argv = network.namespace("host").argv(
            *(sys.executable, "-c", PROGRAM, name, str(unified_root()), str(group), json.dumps(keep))
        )
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)


@pytest.mark.parametrize("name", sorted(CAPABILITIES))
def test_backend_needs_all_of_its_capabilities_and_no_others(name: str) -> None:
    """The agent drops the others for good."""
    if name == EBPF:
        need_bpf()
    else:
        need_backend(name)
    done = run(name, CAPABILITIES[name])
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
    for missing in CAPABILITIES[name]:
        fewer = run(name, tuple(each for each in CAPABILITIES[name] if each != missing))
        assert fewer.returncode != 0
        assert "BackendError" in fewer.stderr or "PermissionError" in fewer.stderr, fewer.stderr
