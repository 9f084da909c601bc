"""The part of the agent as a process of its own, with the capabilities of the table and no others."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.network.config import parse_config
from tests.support.flows import received_in, tcp_flow
from tests.support.networknamespaces import Network, Node, need_namespaces
from tests.support.shaping import MEGA
from tests.support.unifiedgroups import unified_group, unified_root

AGENT = Path(__file__).parent / "agent_part.py"
CONFIG = """
uplink:
  enabled: true
  dryRun: DRY_RUN
  budget: {in: 1G, out: 1G}
  staticShare: {in: 12M, out: 6M}
shaping:
  enabled: true
  bpfNames: FOLDER/bpf/uplink
  hub: {address: "127.0.0.1:1", ca: FOLDER/ca, token: FOLDER/token}
"""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    need_namespaces("tc")
    with Network() as network:
        yield network.node(pods=2)


@contextlib.contextmanager
def agent(
    node: Node, folder: Path, group: Path, *, dry_run: bool = False, remove: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "bpf").mkdir(exist_ok=True)
    text = CONFIG.replace("FOLDER", str(folder)).replace("DRY_RUN", str(dry_run).lower())
    parse_config(text)
    (folder / "network.yaml").write_text(text)
    pods = json.dumps(
        {
            "pod0": [list(node.addresses(0)), ""],
            "host": [["192.0.2.1"], str(group.relative_to(unified_root() or group))],
        }
    )
    arguments = (str(folder), pods, str(unified_root()), *(["remove"] if remove else []))
    process = node.host.start(sys.executable, str(AGENT), *arguments)
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def page(process: subprocess.Popen[bytes]) -> dict[str, object]:
    """Return the page of the first pass after which it is complete."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        assert process.stderr is not None
        raise AssertionError(process.stderr.read().decode())
    return json.loads(line)  # type: ignore[no-any-return]


def test_capabilities_of_the_table_suffice_and_limits_stay_until_removed(node: Node, tmp_path: Path) -> None:
    with unified_group() as group:
        before = node.host.run("ip", "-o", "link", "show")
        with agent(node, tmp_path, group) as process:
            shown = page(process)
            assert shown["source"] == "static"
            assert shown["problem"] == ""
            limits = shown["node"]
            assert isinstance(limits, dict)
            assert limits["links"] == ["pod0", "pod1"]
            assert limits["policed"] == ["host"]
            assert limits["unlimited"] == []
            process.send_signal(signal.SIGTERM)
        with tcp_flow(node.outside, "192.0.2.2", node.pods[0], download=True) as flow:
            received_in([flow], 0.3)
            bits = 8 * received_in([flow], 1.0)[0]
        assert 0.2 * 4 * MEGA <= bits <= 1.2 * 4 * MEGA  # a third of the static share
        with agent(node, tmp_path, group, remove=True) as process:
            _, errors = process.communicate(timeout=30)
            assert process.returncode == 0, errors.decode()
        assert node.host.run("ip", "-o", "link", "show") == before


def test_dry_run_changes_no_link_and_counts(node: Node, tmp_path: Path) -> None:
    with unified_group() as group:
        before = node.host.run("tc", "qdisc", "show"), node.host.run("ip", "-o", "link", "show")
        with agent(node, tmp_path, group, dry_run=True) as process:
            shown = page(process)
            assert shown["source"] == "dryRun"
            assert (node.host.run("tc", "qdisc", "show"), node.host.run("ip", "-o", "link", "show")) == before
            subjects = shown["subjects"]
            assert isinstance(subjects, dict)
            assert "host" in subjects
