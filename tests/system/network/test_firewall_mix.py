"""Which firewall a node uses, by real rules of both kinds in a namespace."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from muster.network.traffic.mix import LEGACY, NFTABLES, Firewalls, Table, look
from tests.support.networknamespaces import Namespace, Network, need_namespaces
from tests.support.trafficbackends import CLASSES, fresh


@pytest.fixture
def host() -> Iterator[Namespace]:
    """A namespace without rules."""
    need_namespaces("nft", "iptables-legacy", "iptables-nft", "ip6tables-legacy")
    with Network() as network:
        yield network.namespace("host")


def kube(host: Namespace, program: str, rules: int = 3) -> None:
    """Write rules as kube-proxy does."""
    lines = ["*nat", ":KUBE-SERVICES - [0:0]", *(["-A KUBE-SERVICES -j RETURN"] * rules), "COMMIT", ""]
    host.run(f"{program}-restore", "--noflush", input="\n".join(lines))


def test_node_without_rules_uses_nftables_and_gets_no_legacy_table(host: Namespace) -> None:
    """Looking twice changes nothing."""
    for _ in range(2):
        assert host.call(look) == Firewalls()
    assert host.call(look).uses() == NFTABLES


@pytest.mark.parametrize(
    ("program", "uses"), [("iptables-legacy", LEGACY), ("ip6tables-legacy", LEGACY), ("iptables-nft", NFTABLES)]
)
def test_kubernetes_71305_firewall_of_kube_proxy_is_the_nodes(host: Namespace, program: str, uses: str) -> None:
    """Both programs call themselves `iptables`."""
    kube(host, program)
    seen = host.call(look)
    assert (seen.uses(), seen.mixed()) == (uses, False)


def test_amazon_vpc_cni_3559_cni_in_the_other_firewall_is_a_mix(host: Namespace) -> None:
    """The CNI started before kube-proxy and chose legacy iptables; kube-proxy writes nftables."""
    host.run("iptables-legacy", "-t", "nat", "-N", "AWS-SNAT-CHAIN-0")
    host.run("iptables-legacy", "-t", "nat", "-A", "AWS-SNAT-CHAIN-0", "-j", "RETURN")
    assert host.call(look).uses() == LEGACY
    kube(host, "iptables-nft")
    seen = host.call(look)
    assert seen == Firewalls((Table("ip nat", 1, ("AWS CNI",)),), (Table("ip nat", 3, ("Kubernetes",)),))
    assert seen.uses() == NFTABLES
    assert seen.mixed()


@pytest.mark.parametrize("name", ["nftables", "iptables-legacy"])
def test_counters_of_muster_make_no_mix(host: Namespace, name: str) -> None:
    """Either backend beside rules of the other kind."""
    kube(host, "iptables-legacy" if name == "nftables" else "iptables-nft")
    host.call(fresh(name).setup, CLASSES)
    assert not host.call(look).mixed()


def test_rules_of_kubernetes_in_both_are_decided_by_their_number(host: Namespace) -> None:
    """An upgrade of the node's image left some in legacy tables."""
    kube(host, "iptables-legacy", rules=2)
    kube(host, "iptables-nft", rules=5)
    seen = host.call(look)
    assert seen.uses() == NFTABLES
    assert seen.mixed()


def test_legacy_tables_are_unread_where_the_program_is_missing(
    host: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image of the agent may have no legacy iptables."""
    kube(host, "iptables-legacy")
    monkeypatch.setattr("muster.network.traffic.backends.program._PATH", "/absent")
    monkeypatch.setenv("PATH", "/absent")
    assert host.call(look) == Firewalls(unread=("ip nat",))
