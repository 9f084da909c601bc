"""Which links lead out of a node."""

from __future__ import annotations

from muster.network.traffic.interfaces import Interfaces, Link, choose


def test_nics_and_what_is_stacked_on_them_lead_out() -> None:
    """A bond of two NICs with a VLAN and a bridge on it; pods' links and unrelated bridges do not."""
    links = [
        Link(1, "lo"),
        Link(2, "eth0", physical=True, master=4),
        Link(3, "eth1", physical=True, master=4),
        Link(4, "bond0", kind="bond"),
        Link(5, "bond0.7", kind="vlan", lower=4, master=6),
        Link(6, "br0", kind="bridge"),
        Link(7, "cni0", kind="bridge"),
        Link(8, "veth1", kind="veth", lower=2, master=7),
        Link(9, "flannel.1", kind="vxlan", lower=2),
        Link(10, "wg0", kind="wireguard"),
        Link(11, "ib0", physical=True),
    ]
    assert choose(links) == Interfaces(("bond0", "bond0.7", "br0", "eth0", "eth1", "ib0"), ("flannel.1", "wg0"))


def test_link_of_a_pod_is_not_stacked_though_its_peer_has_the_number_of_a_nic() -> None:
    """The number of a veth's peer belongs to another namespace."""
    assert choose([Link(2, "eth0", physical=True), Link(3, "veth1", kind="veth", lower=2)]).nics == ("eth0",)
