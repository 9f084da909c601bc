"""The host's interface of a pod, found on the real kernel by the pod's address, with several kinds of networks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from muster.network.localpods.interfaces import Interfaces
from tests.support.networknamespaces import Namespace, Network, Node, need_namespaces


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    need_namespaces()
    with Network() as made:
        yield made


@pytest.fixture(scope="module")
def node(network: Network) -> Node:
    return network.node(pods=3)


def find(host: Namespace, *addresses: str) -> str:
    """Ask as an agent that has just started."""
    return host.call(Interfaces().of_addresses, addresses)


def test_interface_is_found_by_either_family_through_the_namespace_of_the_pod(node: Node) -> None:
    for number in range(3):
        four, six = node.addresses(number)
        assert find(node.host, four) == f"pod{number}"
        assert find(node.host, six) == f"pod{number}"
        assert find(node.host, "192.0.2.77", four) == f"pod{number}"


def test_an_address_of_the_node_of_outside_or_of_no_pod_has_no_interface(node: Node) -> None:
    for address in ("192.0.2.1", "198.51.100.9", "2001:db8::1", "127.0.0.1"):
        assert find(node.host, address) == "", address


def test_sandbox_that_takes_the_address_off_the_interface_is_found_by_the_route(network: Network, node: Node) -> None:
    pod = network.pod(node)
    number = len(node.pods) - 1
    four, _ = node.addresses(number)
    pod.run("ip", "address", "flush", "dev", "eth0")
    assert find(node.host, four) == f"pod{number}"


def test_pod_behind_a_bridge_is_found_with_and_without_its_address(network: Network) -> None:
    host, pod = network.namespace("bridged"), network.namespace("inside")
    network.veth(host, "vethx", pod, "eth0")
    host.run("ip", "link", "add", "cni0", "type", "bridge")
    host.run("ip", "link", "set", "vethx", "master", "cni0", "up")
    host.run("ip", "link", "set", "cni0", "up")
    host.run("ip", "address", "add", "10.5.0.1/24", "dev", "cni0")
    pod.run("ip", "address", "add", "10.5.0.2/24", "dev", "eth0")
    assert find(host, "10.5.0.2") == "vethx"
    hardware = pod.run("ip", "-o", "link", "show", "dev", "eth0").split("link/ether ")[1].split()[0]
    pod.run("ip", "address", "flush", "dev", "eth0")
    host.run("ip", "neighbour", "replace", "10.5.0.2", "lladdr", hardware, "dev", "cni0")
    host.run("bridge", "fdb", "replace", hardware, "dev", "vethx", "master")
    assert find(host, "10.5.0.2") == "vethx"


def test_one_address_in_two_namespaces_names_neither_by_namespace_alone(network: Network) -> None:
    host = network.namespace("twice")
    for name in ("a", "b"):
        pod = network.namespace(name)
        network.veth(host, f"veth{name}", pod, "eth0")
        pod.run("ip", "address", "add", "10.6.0.2/32", "dev", "eth0")
    assert find(host, "10.6.0.2") == ""
    host.run("ip", "route", "add", "10.6.0.2/32", "dev", "vethb")
    assert find(host, "10.6.0.2") == "vethb", "the route decides"


def test_pod_with_macvlan_has_no_interface_of_its_own_on_the_host(network: Network, node: Node) -> None:
    pod = network.namespace("macvlan")
    node.host.run("ip", "link", "add", "link", "eth0", "name", "mv0", "type", "macvlan")
    node.host.run("ip", "link", "set", "mv0", "netns", pod.path)
    pod.run("ip", "address", "add", "192.0.2.50/24", "dev", "mv0")
    pod.run("ip", "link", "set", "mv0", "up")
    assert find(node.host, "192.0.2.50") == ""


def test_address_that_another_pod_gets_is_not_answered_from_memory(network: Network) -> None:
    host, first, second = network.namespace("reuse"), network.namespace("first"), network.namespace("second")
    interfaces = Interfaces()
    network.veth(host, "veth1", first, "eth0")
    first.run("ip", "address", "add", "10.7.0.2/32", "dev", "eth0")
    assert host.call(interfaces.of_addresses, ("10.7.0.2",)) == "veth1"
    host.run("ip", "link", "delete", "veth1")
    assert host.call(interfaces.of_addresses, ("10.7.0.2",)) == ""
    network.veth(host, "veth1", second, "eth0")
    second.run("ip", "address", "add", "10.7.0.9/32", "dev", "eth0")
    assert host.call(interfaces.of_addresses, ("10.7.0.2",)) == "", "another interface under the same name"
