"""What a pod network needs besides addresses: Services, SNAT, hostPort, and other plugins before and after ours."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from muster.network.addresses.block import Block, Family
from muster.network.cni import masquerade
from muster.network.cni.config import INTERNAL
from muster.network.cni.errors import Code
from muster.network.cni.interfaces.kinds import make_kinds
from muster.network.cni.netconf import Mode
from tests.support.cninode import CniFailed, CniNode, cni_node
from tests.support.networknamespaces import Namespace, connected, need_namespaces, transfer

SERVICES = """
table ip kube {
  chain services { ip daddr 10.96.0.10 tcp dport 80 dnat to FOUR:8080
  }
  chain prerouting { type nat hook prerouting priority dstnat; jump services
  }
  chain output { type nat hook output priority -100; jump services
  }
  chain postrouting { type nat hook postrouting priority srcnat; ip saddr FOUR ip daddr FOUR masquerade
  }
}
table ip6 kube {
  chain services { ip6 daddr fd00:96::10 tcp dport 80 dnat to [SIX]:8080
  }
  chain prerouting { type nat hook prerouting priority dstnat; jump services
  }
  chain output { type nat hook output priority -100; jump services
  }
  chain postrouting { type nat hook postrouting priority srcnat; ip6 saddr SIX ip6 daddr SIX masquerade
  }
}
"""
"""As kube-proxy writes it for a Service with one endpoint: DNAT, and SNAT of a pod that reaches itself."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CniNode]:
    need_namespaces("nft", "iptables")
    with cni_node(tmp_path_factory.mktemp("cni"), cooldown_s=0.0) as made:
        yield made


@pytest.fixture
def pod(node: CniNode) -> Iterator[Namespace]:
    yield node.network.namespace("pod")
    node.plugin("GC", "", "", **{"cni.dev/valid-attachments": []})


def ips_of(result: dict[str, Any]) -> list[str]:
    return [each["address"].partition("/")[0] for each in result["ips"]]


def peer_seen(server: Namespace, address: str, client: Namespace, *, by: tuple[str, int] | None = None) -> str:
    """Connect a client to a server, perhaps by another address and port, and return the client's address there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with server.socket(family) as listening, client.socket(family) as dialing:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, 8080 if by else 0))
        listening.listen(1)
        dialing.connect(by or (address, listening.getsockname()[1]))
        accepted, peer = listening.accept()
        with accepted:
            accepted.settimeout(30)
            transfer(dialing, accepted, 10_000)
            transfer(accepted, dialing, 10_000)
        return str(peer[0])


@pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
def test_service_is_reached_from_another_pod_from_its_own_pod_and_from_the_node(
    node: CniNode, pod: Namespace, family: int
) -> None:
    other = node.network.namespace("other")
    servers, clients = ips_of(node.cnitool("add", pod)), ips_of(node.cnitool("add", other))
    address, service = servers[family], ("10.96.0.10", "fd00:96::10")[family]
    services = SERVICES.replace("FOUR", servers[0]).replace("SIX", servers[1])
    try:
        node.node.host.call(masquerade.apply, INTERNAL)
        node.node.host.run("nft", "-f", "-", input=services)
        assert peer_seen(pod, address, other, by=(service, 80)) == clients[family]
        assert peer_seen(pod, address, pod, by=(service, 80)) != address  # through the node, which is the next hop
        assert peer_seen(pod, address, node.node.host, by=(service, 80))
        assert peer_seen(pod, address, node.node.outside, by=(service, 80)).startswith(("192.0.2.2", "2001:db8::2"))
    finally:
        node.node.host.call(masquerade.remove)
        for each in ("ip", "ip6"):
            node.node.host.run("nft", "-f", "-", input=f"table {each} kube {{}}\ndelete table {each} kube\n")


@pytest.mark.parametrize(
    ("family", "outside", "internal", "node_address"),
    [(0, "198.51.100.7", "10.200.0.1", "192.0.2.1"), (1, "2001:db8:9::7", "fd00:200::1", "2001:db8::1")],
    ids=["IPv4", "IPv6"],
)
def test_outside_sees_the_node_and_internal_peers_see_the_pod(
    node: CniNode, pod: Namespace, family: int, outside: str, internal: str, node_address: str
) -> None:
    address = ips_of(node.cnitool("add", pod))[family]
    for each in (outside, internal):
        node.node.outside_address(each)
    assert peer_seen(node.node.outside, outside, pod) == address  # before: that is how the test knows that rules act
    node.node.host.call(masquerade.apply, INTERNAL)
    node.node.host.call(masquerade.apply, INTERNAL)  # a restarted agent
    try:
        assert node.node.host.call(masquerade.is_applied)
        assert peer_seen(node.node.outside, outside, pod) == node_address
        assert peer_seen(node.node.outside, internal, pod) == address
        assert peer_seen(pod, address, node.node.host) != address
    finally:
        node.node.host.call(masquerade.remove)
    assert not node.node.host.call(masquerade.is_applied)
    node.node.host.call(masquerade.remove)
    assert peer_seen(node.node.outside, outside, pod) == address


def test_pods_of_a_node_see_each_other_also_with_addresses_that_are_not_internal(node: CniNode, pod: Namespace) -> None:
    other = node.network.namespace("other")
    (four, _), clients = ips_of(node.cnitool("add", pod)), ips_of(node.cnitool("add", other))
    node.node.host.call(masquerade.apply, ())
    try:
        assert peer_seen(pod, four, other) == clients[0]
    finally:
        node.node.host.call(masquerade.remove)


def test_connection_survives_a_new_set_of_rules(node: CniNode, pod: Namespace) -> None:
    node.cnitool("add", pod)
    outside = node.node.outside_address("198.51.100.8")
    node.node.host.call(masquerade.apply, INTERNAL)
    try:
        with connected(node.node.outside, outside, pod) as (accepted, dialing):
            node.node.host.call(masquerade.apply, (*INTERNAL, "198.51.100.0/24"))
            transfer(dialing, accepted, 100_000)
            assert accepted.getpeername()[0] == "192.0.2.1"
    finally:
        node.node.host.call(masquerade.remove)


def test_reference_plugins_after_ours_open_a_host_port_limit_bandwidth_and_set_sysctls(
    node: CniNode, pod: Namespace
) -> None:
    node.configure(
        {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True},
        {"type": "bandwidth", "capabilities": {"bandwidth": True}},
        {"type": "tuning", "sysctl": {"net.core.somaxconn": "517"}},
        name="chain",
    )
    arguments = {
        "portMappings": [{"hostPort": 8081, "containerPort": 8080, "protocol": "tcp"}],
        "bandwidth": {"ingressRate": 80_000_000, "ingressBurst": 8_000_000},
    }
    given = {"name": "chain", "CAP_ARGS": json.dumps(arguments)}
    result = node.cnitool("add", pod, **given)
    four, _ = ips_of(result)
    host_interface = result["interfaces"][0]["name"]
    assert peer_seen(pod, four, node.node.outside, by=("192.0.2.1", 8081)) == "192.0.2.2"
    assert peer_seen(pod, four, node.node.host, by=("192.0.2.1", 8081))
    assert peer_seen(pod, four, pod, by=("192.0.2.1", 8081))
    assert "tbf" in node.node.host.run("tc", "qdisc", "show", "dev", host_interface)
    assert pod.call(Path("/proc/sys/net/core/somaxconn").read_text).strip() == "517"
    node.cnitool("check", pod, **given)
    node.cnitool("del", pod, **given)
    assert node.store.all() == ()
    assert "8081" not in node.node.host.run("iptables-save") + node.node.host.run("nft", "list", "ruleset")


def test_ours_after_bridge_sets_the_mtu_of_both_ends_and_passes_the_result_on(
    node: CniNode, pod: Namespace, tmp_path: Path
) -> None:
    ipam = {"type": "host-local", "ranges": [[{"subnet": "10.55.0.0/24"}]], "dataDir": str(tmp_path)}
    bridge = {"type": "bridge", "bridge": "br55", "isGateway": True, "ipam": ipam}
    ours = {"type": "muster-cni", "socket": str(node.socket), "mode": "chained", "mtu": 1400}
    node.configure_list(bridge, ours, version="1.0.0", name="after")
    result = node.cnitool("add", pod, name="after")
    assert ips_of(result) == ["10.55.0.2"]
    assert "mtu 1400" in pod.run("ip", "link", "show", "eth0")
    assert "mtu 1400" in node.node.host.run("ip", "link", "show", "master", "br55")
    node.cnitool("check", pod, name="after")
    pod.run("ip", "link", "set", "eth0", "mtu", "1300")
    with pytest.raises(CniFailed):
        node.cnitool("check", pod, name="after")
    node.cnitool("del", pod, name="after")
    assert node.store.all() == ()


def test_ours_after_a_plugin_that_made_another_interface_adds_to_its_result(node: CniNode, pod: Namespace) -> None:
    before = {
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "net0", "sandbox": pod.path}],
        "ips": [{"address": "10.44.0.2/24", "interface": 0}],
        "routes": [{"dst": "10.44.0.0/16"}],
        "dns": {"nameservers": ["10.96.0.2"]},
    }
    result = node.plugin("ADD", pod, "adds", prevResult=before)
    assert [each["name"] for each in result["interfaces"]][::2] == ["net0", "eth0"]
    assert [each["interface"] for each in result["ips"]] == [0, 2, 2]
    assert result["dns"] == before["dns"]
    assert result["routes"][0] == before["routes"][0]
    node.plugin("CHECK", pod, "adds", prevResult=result)
    node.plugin("DEL", pod, "adds", prevResult=result)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[CniNode]:
    """A node whose pods have addresses of the node's own link, with a gateway."""
    need_namespaces()
    with cni_node(tmp_path / "shared", families=(Family.IPV4,), cooldown_s=0.0) as made:
        for block in made.store.blocks():
            made.store.remove_block(block.cidr)
        made.store.put_block(Block(cidr="192.0.2.64/28", prefix=24, gateway="192.0.2.2"))
        yield made


def test_macvlan_pod_is_on_the_link_of_the_node(shared: CniNode) -> None:
    pod = shared.network.namespace("pod")
    shared.configure(mode="macvlan")  # and its master is the interface of the default route
    result = shared.cnitool("add", pod)
    (address,) = ips_of(result)
    assert result["ips"][0]["address"].endswith("/24")
    assert result["ips"][0]["gateway"] == "192.0.2.2"
    assert peer_seen(shared.node.outside, "192.0.2.2", pod) == address
    assert peer_seen(pod, address, shared.node.outside) == "192.0.2.2"
    far = shared.node.outside_address("198.51.100.9")
    assert peer_seen(shared.node.outside, far, pod) == address
    shared.cnitool("check", pod)
    pod.run("ip", "address", "flush", "dev", "eth0")
    with pytest.raises(CniFailed):
        shared.cnitool("check", pod)
    shared.cnitool("del", pod)
    assert "eth0" not in pod.run("ip", "-br", "link")
    assert shared.store.all() == ()


def test_macvlan_is_gone_before_its_address_is_free_also_if_the_namespace_has_no_path(shared: CniNode) -> None:
    pod = shared.network.namespace("pod")  # a process holds it
    shared.plugin("ADD", pod, "held", mode="macvlan")
    shared.plugin("DEL", "", "held", mode="macvlan")
    assert "eth0" not in pod.run("ip", "-br", "link")
    assert shared.store.all() == ()


def test_gc_removes_a_macvlan_with_the_mode_of_today(shared: CniNode) -> None:
    pod = shared.network.namespace("pod")
    shared.plugin("ADD", pod, "old", mode="macvlan")
    shared.plugin("GC", "", "", mode="veth", **{"cni.dev/valid-attachments": []})
    assert "eth0" not in pod.run("ip", "-br", "link")
    assert shared.store.all() == ()


@pytest.mark.parametrize(
    ("driver", "vendor", "cloud"),
    [
        ("ena", "Amazon EC2", "AWS"),
        ("ixgbevf", "Amazon EC2", "AWS"),
        ("hv_netvsc", "Microsoft Corporation", "Azure"),
        ("mlx5_core", "Microsoft Corporation", "Azure"),
        ("mlx5_core", "Dell Inc.", ""),
    ],
)
@pytest.mark.parametrize("below", ["", "bond0"])
def test_macvlan_is_refused_on_cards_that_drop_foreign_hardware_addresses(
    shared: CniNode, tmp_path: Path, driver: str, vendor: str, cloud: str, below: str
) -> None:
    sys = fake_sys(tmp_path / "sys", driver, vendor, bond=bool(below))
    kinds: Mapping[Mode, Any] = make_kinds(sys=sys)
    shared.operations.__init__(shared.store, kinds)  # type: ignore[misc]
    pod = shared.network.namespace("pod")
    if not cloud:
        shared.plugin("ADD", pod, "metal", mode="macvlan", master="eth0")
        return
    with pytest.raises(CniFailed) as failed:
        shared.plugin("ADD", pod, "cloud", mode="macvlan", master="eth0")
    assert failed.value.code == Code.INVALID_CONFIG
    assert cloud in failed.value.error["msg"]
    assert shared.store.all() == ()


def fake_sys(sys: Path, driver: str, vendor: str, *, bond: bool) -> Path:
    """Make the parts of /sys that describe a network card: eth0, or a bond of that name over ens5."""
    card = sys / "class/net" / ("ens5" if bond else "eth0")
    drivers = sys / "bus/drivers" / driver
    drivers.mkdir(parents=True)
    (card / "device").mkdir(parents=True)
    (card / "device/driver").symlink_to(drivers)
    if bond:
        (sys / "class/net/eth0").mkdir()
        (sys / "class/net/eth0/lower_ens5").symlink_to(card)
    (sys / "class/dmi/id").mkdir(parents=True)
    (sys / "class/dmi/id/sys_vendor").write_text(vendor + "\n")
    return sys


def test_ipvlan_works_or_says_that_the_kernel_has_none(shared: CniNode) -> None:
    pod = shared.network.namespace("pod")
    try:
        (address,) = ips_of(shared.plugin("ADD", pod, "ipvlan", mode="ipvlan"))
    except CniFailed as error:
        problem = error
    else:
        assert peer_seen(shared.node.outside, "192.0.2.2", pod) == address
        shared.plugin("DEL", pod, "ipvlan", mode="ipvlan")
        assert shared.store.all() == ()
        return
    assert problem.code == Code.INVALID_CONFIG
    assert "kernel has no ipvlan" in problem.error["msg"]
    assert shared.store.all() == ()


def test_shared_kinds_need_a_gateway_and_an_interface_that_exists(shared: CniNode) -> None:
    pod = shared.network.namespace("pod")
    for fields, says in (({"master": "eth7"}, "eth7"),):
        with pytest.raises(CniFailed) as failed:
            shared.plugin("ADD", pod, "refused", mode="macvlan", **fields)
        assert failed.value.code == Code.INVALID_CONFIG
        assert says in failed.value.error["msg"]
    shared.store.remove_block("192.0.2.64/28")
    shared.store.put_block(Block(cidr="192.0.2.64/28"))
    with pytest.raises(CniFailed) as failed:
        shared.plugin("ADD", pod, "refused", mode="macvlan")
    assert "gateway" in failed.value.error["msg"]
    assert shared.store.all() == ()
