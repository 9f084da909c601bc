"""The network namespaces of tests: pods reach the outside over the host, and nothing is left."""

from __future__ import annotations

import socket

import pytest

from tests.support.networknamespaces import Network, connected, need_namespaces, transfer


@pytest.mark.parametrize("address", ["192.0.2.2", "2001:db8::2"])
def test_pod_reaches_the_outside_over_the_host(address: str) -> None:
    """All bytes go over the host's link, in both families."""
    need_namespaces()
    with Network() as network:
        node = network.node(pods=1)
        with connected(node.outside, address, node.pods[0]) as (server, client):
            transfer(client, server, 200_000)
        assert node.host.counters("eth0")["tx_bytes"] > 200_000


def test_namespace_hides_the_links_of_the_machine() -> None:
    """Only the loopback is in a new one, and a failing command says which it was."""
    need_namespaces()
    with Network() as network:
        namespace = network.namespace("empty")
        assert [name for _, name in namespace.call(socket.if_nameindex)] == ["lo"]
        with pytest.raises(AssertionError, match="ip link show absent: exit 1"):
            namespace.run("ip", "link", "show", "absent")
