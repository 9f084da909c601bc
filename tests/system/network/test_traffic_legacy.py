"""What only the backend of legacy iptables has to cope with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from muster.network.traffic.backend import BackendError, CounterKey, Subject
from muster.network.traffic.backends import legacy
from muster.network.traffic.backends.program import run_program
from tests.support.networknamespaces import Network, Node, need_namespaces
from tests.support.trafficbackends import CLASSES, INTERNET4, counted, datagrams, fresh, need_backend

LEGACY = "iptables-legacy"


@pytest.fixture
def node() -> Iterator[Node]:
    """A host with one pod."""
    need_namespaces()
    need_backend(LEGACY)
    with Network() as network:
        made = network.node(pods=1)
        made.outside_address(INTERNET4)
        yield made


def test_agent_that_was_killed_while_a_subject_ended_leaves_it_counting(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packets had been led past its rule. The next agent ends that, and the subject has all bytes but those."""
    subjects = [Subject("uid-0", node.addresses(0))]
    backend = fresh(LEGACY)
    node.host.call(backend.setup, CLASSES)
    node.host.call(backend.put, subjects)
    before = datagrams(node.pods[0], node.outside, INTERNET4, 2)

    def killed(argv: Sequence[str], text: str = "") -> str:
        if "-D MUSTER-" in text:
            raise BackendError("killed")
        return run_program(argv, text)

    with monkeypatch.context() as patch:
        patch.setattr(legacy, "run_program", killed)
        with pytest.raises(BackendError, match="killed"):
            node.host.call(backend.remove, ["uid-0"])
    datagrams(node.pods[0], node.outside, INTERNET4, 1)
    following = fresh(LEGACY)
    node.host.call(following.setup, CLASSES)
    assert node.host.call(following.put, subjects) == {}
    after = datagrams(node.pods[0], node.outside, INTERNET4, 4)
    key = CounterKey("uid-0", "internet", "out")
    assert counted(node.host.call(following.read))[key] == before + after
    assert counted(node.host.call(following.remove, ["uid-0"])) == {key: before + after}
    assert "ending" not in node.host.run("iptables-legacy-save", "-t", "mangle")


def test_node_without_ipv6_is_counted(node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The kernel was started with ipv6.disable=1: the program for IPv6 is not run."""
    monkeypatch.setattr(legacy, "_IPV6", tmp_path / "absent")
    backend = fresh(LEGACY)
    node.host.call(backend.setup, CLASSES)
    node.host.call(backend.put, [Subject("uid-0", node.addresses(0))])
    sent = datagrams(node.pods[0], node.outside, INTERNET4, 2)
    assert counted(node.host.call(backend.read)) == {CounterKey("uid-0", "internet", "out"): sent}
    assert "MUSTER-" not in node.host.run("ip6tables-legacy-save")
    node.host.call(backend.teardown)
    assert "MUSTER-" not in node.host.run("iptables-legacy-save")


def test_rules_of_others_in_the_same_table_survive(node: Node) -> None:
    """Their rules, counters and chains, through setup, changes and teardown."""
    node.host.run("iptables-legacy", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY")
    node.host.run("iptables-legacy", "-t", "mangle", "-A", "FORWARD", "-s", "10.1.0.10/32", "-j", "RETURN")
    datagrams(node.pods[0], node.outside, INTERNET4, 2)
    backend = fresh(LEGACY)
    node.host.call(backend.setup, CLASSES)
    node.host.call(backend.put, [Subject("uid-0", node.addresses(0))])
    datagrams(node.pods[0], node.outside, INTERNET4, 3)
    node.host.call(backend.put, [])
    node.host.call(backend.teardown)
    saved = node.host.run("iptables-legacy-save", "-c", "-t", "mangle")
    assert "[5:5140] -A FORWARD -s 10.1.0.10/32 -j RETURN" in saved
    assert ":KUBE-KUBELET-CANARY - [0:0]" in saved
    assert "MUSTER-" not in saved
