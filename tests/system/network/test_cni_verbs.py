"""The CNI plugin by cnitool and by its shim, in network namespaces of the test: each verb, both address families."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from muster.network.addresses.attachment import AttachmentKey
from muster.network.cni.errors import Code
from muster.network.cni.names import host_interface_name
from muster.network.cni.versions import SUPPORTED
from tests.support.cninode import CniFailed, CniNode, cni_node
from tests.support.networknamespaces import Namespace, connected, need_namespaces, transfer
from tests.support.waiting import TIMEOUT_S, eventually


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CniNode]:
    need_namespaces("nft")
    with cni_node(tmp_path_factory.mktemp("cni"), cooldown_s=0.0) as made:
        yield made


@pytest.fixture
def pod(node: CniNode) -> Iterator[Namespace]:
    """A namespace for a pod. The test leaves the node without interfaces and without addresses in use."""
    made = node.network.namespace("pod")
    yield made
    node.plugin("GC", "", "", **{"cni.dev/valid-attachments": []})
    assert node.links() == []
    assert node.store.all() == ()


_numbers = itertools.count()


@pytest.fixture
def container() -> str:
    return f"container-{next(_numbers)}"


def ips_of(result: dict[str, Any]) -> list[str]:
    return [each["address"].partition("/")[0] for each in result["ips"]]


def test_added_pod_reaches_the_host_and_the_outside_in_both_families(node: CniNode, pod: Namespace) -> None:
    four, six = ips_of(node.cnitool("add", pod))
    host, outside = node.node.host, node.node.outside
    for server, address, client in (
        (host, "192.0.2.1", pod),
        (host, "2001:db8::1", pod),
        (outside, "192.0.2.2", pod),
        (outside, "2001:db8::2", pod),
        (pod, four, host),  # the kubelet's probes
        (pod, six, host),
        (pod, four, outside),
        (pod, six, outside),
        (pod, four, pod),
        (pod, six, pod),
    ):
        with connected(server, address, client) as (accepted, dialing):
            transfer(dialing, accepted, 100_000)
            transfer(accepted, dialing, 100_000)
    node.cnitool("check", pod)
    node.cnitool("status", pod)
    node.cnitool("del", pod)
    assert node.links() == []
    assert node.store.all() == ()
    node.cnitool("del", pod)


def test_two_pods_of_a_node_reach_each_other(node: CniNode, pod: Namespace) -> None:
    other = node.network.namespace("other")
    node.cnitool("add", pod)
    for ip in ips_of(node.cnitool("add", other)):
        with connected(other, ip, pod) as (accepted, dialing):
            transfer(dialing, accepted, 100_000)
            assert accepted.getpeername()[0] in {each.ip for held in node.store.all() for each in held.addresses}


@pytest.mark.parametrize("version", SUPPORTED)
def test_result_and_errors_are_in_the_version_of_the_request(
    node: CniNode, pod: Namespace, container: str, version: str
) -> None:
    result = node.plugin("ADD", pod, container, cniVersion=version)
    assert result["cniVersion"] == version
    assert [each.get("version") for each in result["ips"]] == (["4", "6"] if version == "0.4.0" else [None, None])
    assert ["mtu" in each for each in result["interfaces"]] == [version == "1.1.0"] * 2
    assert result["interfaces"][0]["name"] == host_interface_name(AttachmentKey(container, "eth0"))
    assert result["interfaces"][1] == {**result["interfaces"][1], "name": "eth0", "sandbox": pod.path}
    assert {each["interface"] for each in result["ips"]} == {1}
    node.plugin("CHECK", pod, container, cniVersion=version, prevResult=result)
    with pytest.raises(CniFailed) as failed:
        node.plugin("CHECK", pod, container, cniVersion=version)
    assert failed.value.error["cniVersion"] == version
    assert failed.value.code == Code.INVALID_CONFIG


def test_version_lists_what_the_daemon_supports(node: CniNode) -> None:
    answer = node.plugin("VERSION", "", "", cniVersion="0.4.0")
    assert answer == {"cniVersion": "0.4.0", "supportedVersions": list(SUPPORTED)}


@pytest.mark.parametrize(
    ("fields", "environment", "code"),
    [
        ({"cniVersion": "0.3.1"}, {}, Code.INCOMPATIBLE_VERSION),
        ({"cniVersion": "2.0.0"}, {}, Code.INCOMPATIBLE_VERSION),
        ({"name": ""}, {}, Code.INVALID_CONFIG),
        ({"mtu": "large"}, {}, Code.INVALID_CONFIG),
        ({"mtu": 68}, {}, Code.INVALID_CONFIG),
        ({"mode": "bridge"}, {}, Code.INVALID_CONFIG),
        ({"mode": "chained"}, {}, Code.INVALID_CONFIG),
        ({"routes": ["10.0.0.1/8"]}, {}, Code.INVALID_CONFIG),
        ({"prevResult": []}, {}, Code.DECODING_FAILURE),
        ({"prevResult": {"interfaces": 5}}, {}, Code.DECODING_FAILURE),
        ({"prevResult": {"routes": {"dst": "0.0.0.0/0"}}}, {}, Code.DECODING_FAILURE),
        ({"dns": 5}, {}, Code.INVALID_CONFIG),
        ({"name": "n" * 600}, {}, Code.INVALID_CONFIG),
        ({"routes": [f"10.{high}.{low}.0/24" for high in range(4) for low in range(256)]}, {}, Code.INVALID_CONFIG),
        ({}, {"container_id": "../etc"}, Code.INVALID_ENVIRONMENT),
        ({}, {"container_id": "a" * 201}, Code.INVALID_ENVIRONMENT),
        ({}, {"ifname": "\u00e9" * 15}, Code.INVALID_ENVIRONMENT),
        ({}, {"ifname": "eth%d"}, Code.INVALID_ENVIRONMENT),
        ({}, {"pod": "/proc/self/ns/uts"}, Code.INVALID_NAMESPACE),
        ({}, {"pod": "/" + "n" * 600}, Code.INVALID_ENVIRONMENT),
        ({}, {"container_id": ""}, Code.INVALID_ENVIRONMENT),
        ({}, {"ifname": "a-name-that-is-too-long"}, Code.INVALID_ENVIRONMENT),
        ({}, {"ifname": "eth/0"}, Code.INVALID_ENVIRONMENT),
        ({}, {"pod": ""}, Code.INVALID_ENVIRONMENT),
        ({}, {"pod": "/run/netns/missing"}, Code.INVALID_NAMESPACE),
        ({}, {"pod": "/etc/hostname"}, Code.INVALID_NAMESPACE),
        ({}, {"verb": "RENAME"}, Code.INVALID_ENVIRONMENT),
    ],
)
def test_refused_request_has_the_code_of_the_specification_and_holds_nothing(
    node: CniNode, pod: Namespace, container: str, fields: dict[str, Any], environment: dict[str, str], code: Code
) -> None:
    verb = environment.get("verb", "ADD")
    with pytest.raises(CniFailed) as failed:
        node.plugin(
            verb,
            environment.get("pod", pod),
            environment.get("container_id", container),
            ifname=environment.get("ifname", "eth0"),
            **fields,
        )
    assert failed.value.code == code, failed.value.error
    assert failed.value.error["msg"]
    assert node.store.all() == ()
    assert node.links() == []


def test_version_is_answered_in_json_whatever_the_request_has(node: CniNode) -> None:
    assert node.plugin("VERSION", "", "", cniVersion="1.0\u0007\u007f")["cniVersion"] == "1.0\u0007\u007f"


def test_pipe_at_the_path_of_the_namespace_is_not_waited_for(
    node: CniNode, pod: Namespace, container: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CniFailed) as failed:
        node.plugin("ADD", str(tmp_path / "pipe"), container)
    assert failed.value.code == Code.INVALID_NAMESPACE
    node.plugin("DEL", str(tmp_path / "pipe"), container)


@pytest.mark.slow
def test_one_deadline_is_for_a_daemon_that_hangs_or_answers_slowly_and_for_a_runtime_that_never_ends_its_input(
    node: CniNode, pod: Namespace, tmp_path: Path
) -> None:
    conf = f'{{"cniVersion":"0.4.0","name":"pods","socket":"{tmp_path}/cni.sock"}}'
    stopped = threading.Event()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{tmp_path}/cni.sock")
        listening.listen()

        def answer_slowly() -> None:
            with listening.accept()[0], listening.accept()[0] as dripping:  # the first one never gets a byte
                while not stopped.wait(1.0):
                    with contextlib.suppress(OSError):
                        dripping.send(b" ")

        slow = threading.Thread(target=answer_slowly)
        slow.start()
        processes = []
        for verb, ends in (("ADD", True), ("STATUS", True), ("DEL", False)):
            process = subprocess.Popen(
                [str(node.plugins / "muster-cni")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={"CNI_COMMAND": verb, "CNI_CONTAINERID": "hangs", "CNI_NETNS": pod.path, "CNI_IFNAME": "eth0"},
            )
            assert process.stdin is not None
            process.stdin.write(conf.encode())
            process.stdin.flush()
            if ends:
                process.stdin.close()
            processes.append(process)
        try:
            errors = []
            for process in processes:
                assert process.wait(timeout=100) == 1
                assert process.stdout is not None
                errors.append(json.loads(process.stdout.read()))
        finally:
            for process in processes:
                process.kill()
                for stream in (process.stdin, process.stdout):
                    assert stream is not None
                    stream.close()
                process.wait(timeout=30)
            stopped.set()
            slow.join()
    assert [each["code"] for each in errors] == [Code.TRY_AGAIN_LATER, Code.NOT_AVAILABLE, Code.TRY_AGAIN_LATER]
    assert {each["cniVersion"] for each in errors[:2]} == {"0.4.0"}
    assert {each["details"] for each in errors} == {"there is no answer after 30 s"}


@pytest.mark.parametrize("field", ["later", "prevResult"])
def test_requests_nested_too_deeply_are_refused_and_leave_the_daemon_working(
    node: CniNode, pod: Namespace, container: str, field: str
) -> None:
    text = '{"a":' * 3000 + "{}" + "}" * 3000
    conf = f'{{"{field}":{text},"cniVersion":"1.0.0","name":"pods","socket":"{node.socket}"}}'
    for _ in range(20):  # more than the daemon has threads
        done = node.process(
            [str(node.plugins / "muster-cni")],
            input=conf,
            CNI_COMMAND="ADD",
            CNI_CONTAINERID=container,
            CNI_NETNS=pod.path,
            CNI_IFNAME="eth0",
        )
        assert json.loads(done.stdout)["code"] == Code.DECODING_FAILURE
    node.plugin("ADD", pod, container)


def test_routes_are_compared_as_the_kernel_writes_them(node: CniNode, pod: Namespace, container: str) -> None:
    routes = ["FD00:0::/8", "10.0.0.5", "10.0.0.5/32", "0.0.0.0/0"]
    result = node.plugin("ADD", pod, container, routes=routes)
    assert [each["dst"] for each in result["routes"]] == ["10.0.0.5/32", "0.0.0.0/0", "fd00::/8"]
    node.plugin("CHECK", pod, container, routes=routes, prevResult=result)


def test_long_names_of_a_pod_do_not_keep_it_from_starting(node: CniNode, pod: Namespace, container: str) -> None:
    node.plugin("ADD", pod, container, args=f"IgnoreUnknown=1;;=;K8S_POD_NAME={'a' * 2000};K8S_POD_UID")
    (held,) = node.store.all()
    assert held.pod.name == "a" * 253


def test_configuration_that_is_not_json_is_code_6(node: CniNode, pod: Namespace) -> None:
    done = node.process(
        [str(node.plugins / "muster-cni")],
        input="{",
        CNI_COMMAND="ADD",
        CNI_CONTAINERID="x",
        CNI_NETNS=pod.path,
        CNI_IFNAME="eth0",
    )
    assert done.returncode == 1
    assert json.loads(done.stdout)["code"] == Code.DECODING_FAILURE


def test_add_and_del_are_code_11_and_status_is_code_50_while_the_agent_is_down(
    node: CniNode, pod: Namespace, container: str, tmp_path: Path
) -> None:
    stale = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(stale))  # and a process that was killed leaves it
    for path in (stale, tmp_path / "missing.sock"):
        for verb, code in (
            ("ADD", Code.TRY_AGAIN_LATER),
            ("DEL", Code.TRY_AGAIN_LATER),
            ("CHECK", Code.TRY_AGAIN_LATER),
            ("GC", Code.TRY_AGAIN_LATER),
            ("STATUS", Code.NOT_AVAILABLE),
        ):
            with pytest.raises(CniFailed) as failed:
                node.plugin(verb, pod, container, socket=str(path))
            assert failed.value.code == code
        assert node.plugin("VERSION", "", "", socket=str(path))["supportedVersions"]


def test_repeated_add_returns_the_same_result(node: CniNode, pod: Namespace, container: str) -> None:
    first = node.plugin("ADD", pod, container)
    with connected(pod, ips_of(first)[0], node.node.host) as (accepted, dialing):
        assert node.plugin("ADD", pod, container) == first
        transfer(dialing, accepted, 1000)  # nothing was taken down


def test_repeated_add_restores_an_interface_that_lost_its_address(
    node: CniNode, pod: Namespace, container: str
) -> None:
    first = node.plugin("ADD", pod, container)
    pod.run("ip", "address", "flush", "dev", "eth0")
    assert node.plugin("ADD", pod, container) == first
    node.plugin("CHECK", pod, container, prevResult=first)


def test_interfaces_of_one_pod_have_addresses_and_host_names_of_their_own(
    node: CniNode, pod: Namespace, container: str
) -> None:
    first = node.plugin("ADD", pod, container)
    second = node.plugin("ADD", pod, container, ifname="net1", routes=["10.77.0.0/16"])
    assert not set(ips_of(first)) & set(ips_of(second))
    assert len(node.links()) == 2
    routes = pod.run("ip", "route")
    assert "10.77.0.0/16 via 169.254.1.1 dev net1" in routes
    assert "default via 169.254.1.1 dev eth0" in routes
    node.plugin("DEL", pod, container, ifname="net1")
    node.plugin("CHECK", pod, container, prevResult=first)


def test_interface_of_another_plugin_is_refused_and_left_alone(node: CniNode, pod: Namespace, container: str) -> None:
    pod.run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "other")
    with pytest.raises(CniFailed) as failed:
        node.plugin("ADD", pod, container)
    assert failed.value.code == Code.INVALID_NAMESPACE
    assert "eth0" in pod.run("ip", "-br", "link")
    assert node.store.all() == ()


def test_namespace_of_the_node_itself_is_refused_by_add_and_ignored_by_del(node: CniNode, pod: Namespace) -> None:
    host = node.node.host.path
    with pytest.raises(CniFailed) as failed:
        node.plugin("ADD", host, "c-host", ifname="net7")
    assert failed.value.code == Code.INVALID_NAMESPACE
    assert "net7" not in node.node.host.run("ip", "-br", "link")
    node.plugin("DEL", host, "c-host", ifname="net7")  # the ID of the pod's process was used again
    assert "eth0" in node.node.host.run("ip", "-br", "link")


@pytest.mark.parametrize(
    ("breaks", "says"),
    [
        ("ip link set eth0 down", "down"),
        ("ip address del {four}/32 dev eth0", "address"),
        ("ip -6 address del {six}/128 dev eth0", "address"),
        ("ip route del default", "route"),
        ("ip -6 route del default", "route"),
        ("ip link del eth0", "interface"),
        ("ip link set eth0 address 02:00:00:00:00:99", "hardware address"),
        ("host ip route del {four}/32", "route"),
        ("host ip -6 route del {six}/128", "route"),
    ],
)
def test_check_names_what_differs_from_the_result_of_add(
    node: CniNode, pod: Namespace, container: str, breaks: str, says: str
) -> None:
    result = node.plugin("ADD", pod, container)
    node.plugin("CHECK", pod, container, prevResult=result)
    four, six = ips_of(result)
    words = breaks.format(four=four, six=six).split()
    if words[0] == "host":
        node.node.host.run(*words[1:])
    else:
        pod.run(*words)
    with pytest.raises(CniFailed) as failed:
        node.plugin("CHECK", pod, container, prevResult=result)
    assert failed.value.code == Code.DIFFERS
    assert says in failed.value.error["msg"]


def test_check_of_an_unknown_container_is_code_3(node: CniNode, pod: Namespace, container: str) -> None:
    with pytest.raises(CniFailed) as failed:
        node.plugin("CHECK", pod, container, prevResult={"ips": []})
    assert failed.value.code == Code.UNKNOWN_CONTAINER


def test_check_refuses_the_result_of_another_pod(node: CniNode, pod: Namespace, container: str) -> None:
    result = node.plugin("ADD", pod, container)
    other = {**result, "ips": [{"address": "10.99.0.1/32", "interface": 1}]}
    with pytest.raises(CniFailed) as failed:
        node.plugin("CHECK", pod, container, prevResult=other)
    assert failed.value.code == Code.DIFFERS


@pytest.mark.parametrize("key", ["cni.dev/valid-attachments", "cni.dev/attachments"])
def test_gc_removes_what_is_not_listed_under_either_key(
    node: CniNode, pod: Namespace, container: str, key: str
) -> None:
    gone = node.network.namespace("gone")
    kept = node.plugin("ADD", pod, container)
    node.plugin("ADD", gone, "c-gone")
    node.plugin("GC", "", "", **{key: [{"containerID": container, "ifname": "eth0"}]})
    assert [each.key.container_id for each in node.store.all()] == [container]
    node.plugin("CHECK", pod, container, prevResult=kept)
    assert node.links() == [kept["interfaces"][0]["name"]]


def test_gc_of_one_network_leaves_pods_of_another_one_alone(node: CniNode, pod: Namespace, container: str) -> None:
    result = node.plugin("ADD", pod, container)
    node.plugin("GC", "", "", name="another", **{"cni.dev/valid-attachments": []})
    node.plugin("CHECK", pod, container, prevResult=result)


def test_gc_without_a_list_of_valid_attachments_removes_nothing(node: CniNode, pod: Namespace, container: str) -> None:
    result = node.plugin("ADD", pod, container)
    node.plugin("GC", "", "")
    node.plugin("CHECK", pod, container, prevResult=result)


def test_gc_removes_an_interface_that_the_store_does_not_know(node: CniNode, pod: Namespace, container: str) -> None:
    node.plugin("ADD", pod, container)
    node.store.release(AttachmentKey(container, "eth0"))  # a store that was lost
    assert len(node.links()) == 1
    node.plugin("GC", "", "", **{"cni.dev/valid-attachments": []})
    assert node.links() == []


def test_gc_with_a_null_list_removes_everything(node: CniNode, pod: Namespace, container: str) -> None:
    node.plugin("ADD", pod, container)
    node.plugin("GC", "", "", **{"cni.dev/valid-attachments": None, "cni.dev/attachments": None})
    assert node.store.all() == ()


def test_gc_by_cnitool_keeps_nothing_of_a_pod_that_is_gone(node: CniNode, pod: Namespace) -> None:
    node.cnitool("add", pod)
    node.cnitool("gc", pod)
    assert node.links() == []


def test_status_reports_exhaustion_and_lost_connections(node: CniNode, pod: Namespace) -> None:
    node.plugin("STATUS", "", "")
    held = [str(each) for block in node.store.blocks() for each in itertools.islice(block.network, 4096)]
    node.store.hold(held)
    try:
        with pytest.raises(CniFailed) as failed:
            node.plugin("STATUS", "", "")
        assert failed.value.code == Code.NOT_AVAILABLE
        with pytest.raises(CniFailed) as failed:
            node.plugin("ADD", pod, "c-exhausted")
        assert failed.value.code == Code.TRY_AGAIN_LATER
        node.problem = "net.ipv4.ip_forward is 0"
        with pytest.raises(CniFailed) as failed:
            node.plugin("STATUS", "", "")
        assert failed.value.code == Code.LIMITED_CONNECTIVITY
    finally:
        node.problem = ""
        node.store.hold(())


def test_mtu_is_that_of_the_uplink_or_the_configured_one(node: CniNode, pod: Namespace, container: str) -> None:
    node.node.host.run("ip", "link", "set", "eth0", "mtu", "1450")
    try:
        result = node.plugin("ADD", pod, container)
    finally:
        node.node.host.run("ip", "link", "set", "eth0", "mtu", "1500")
    assert [each["mtu"] for each in result["interfaces"]] == [1450, 1450]
    assert "mtu 1450" in pod.run("ip", "link", "show", "eth0")
    other = node.network.namespace("other")
    node.plugin("ADD", other, "c-jumbo", mtu=9000)
    assert "mtu 9000" in other.run("ip", "link", "show", "eth0")


def test_pod_with_ipv6_turned_off_gets_its_address_without_waiting_and_ignores_router_advertisements(
    node: CniNode, pod: Namespace, container: str
) -> None:
    for name in ("all", "default"):
        pod.sysctl(f"ipv6/conf/{name}/disable_ipv6", "1")
        pod.sysctl(f"ipv6/conf/{name}/accept_dad", "1")
    six = ips_of(node.plugin("ADD", pod, container))[1]
    shown = pod.run("ip", "-6", "address", "show", "dev", "eth0", "scope", "global")
    assert six in shown
    assert "tentative" not in shown
    with connected(pod, six, node.node.outside) as (accepted, dialing):
        transfer(dialing, accepted, 1000)
    (host_interface,) = node.links()
    for namespace, interface in ((pod, "eth0"), (node.node.host, host_interface)):
        path = Path(f"/proc/sys/net/ipv6/conf/{interface}/accept_ra")
        assert namespace.call(path.read_text).strip() == "0"


def test_node_with_hardened_defaults_forwards_packets_of_pods(node: CniNode, pod: Namespace, container: str) -> None:
    host = node.node.host
    hardened = {"ipv4/conf/default/forwarding": "0", "ipv6/conf/default/disable_ipv6": "1"}
    hardened["ipv6/conf/default/forwarding"] = "0"
    usual = {name: host.call(Path("/proc/sys/net", name).read_text) for name in hardened}
    try:
        for name, value in hardened.items():
            host.sysctl(name, value)
        result = node.plugin("ADD", pod, container)
        for ip in ips_of(result):
            with connected(pod, ip, node.node.outside) as (accepted, dialing):
                transfer(dialing, accepted, 1000)
    finally:
        for name, value in usual.items():
            host.sysctl(name, value)


def test_neighbours_are_permanent_so_nothing_is_asked_for(node: CniNode, pod: Namespace, container: str) -> None:
    result = node.plugin("ADD", pod, container)
    inside = json.loads(pod.run("ip", "-j", "neigh", "show", "nud", "permanent", "dev", "eth0"))
    assert {(each["dst"], each["lladdr"]) for each in inside} >= {
        ("169.254.1.1", result["interfaces"][0]["mac"]),
        ("fe80::1", result["interfaces"][0]["mac"]),
    }
    name = result["interfaces"][0]["name"]
    outside = json.loads(node.node.host.run("ip", "-j", "neigh", "show", "nud", "permanent", "dev", name))
    assert {(each["dst"], each["lladdr"]) for each in outside} == {
        (ip, result["interfaces"][1]["mac"]) for ip in ips_of(result)
    }
    drop = "table arp t { chain i { type filter hook input priority 0; policy drop; }; }\n"
    pod.run("nft", "-f", "-", input=drop)  # it answers no ARP, and is reached all the same
    with connected(pod, ips_of(result)[0], node.node.host) as (accepted, dialing):
        transfer(dialing, accepted, 1000)


def test_host_interface_names_its_pod(node: CniNode, pod: Namespace, container: str) -> None:
    node.plugin("ADD", pod, container)
    (shown,) = json.loads(node.node.host.run("ip", "-j", "link", "show", *node.links()))
    assert shown["ifalias"] == f"muster:{container}/eth0"


def test_socket_is_for_root_only_and_other_users_are_not_answered(node: CniNode, pod: Namespace) -> None:
    assert node.socket.stat().st_mode & 0o777 == 0o600
    asks = """
import socket
with socket.socket(socket.AF_UNIX) as dialing:
    dialing.settimeout(10)
    dialing.connect("cni.sock")
    dialing.sendall(b'STATUS\\0\\0\\0\\0\\0\\0\\0{"cniVersion":"1.1.0","name":"pods"}')
    dialing.shutdown(socket.SHUT_WR)
    print(dialing.recv(100))
"""
    node.socket.chmod(0o666)
    node.folder.chmod(0o711)
    try:
        answers = [
            subprocess.run(
                ["setpriv", f"--reuid={user}", "--clear-groups", "/usr/bin/python3", "-c", asks],
                cwd=node.folder,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            for user in (0, 65534)
        ]
    finally:
        node.socket.chmod(0o600)
    assert answers[0].stdout == "b'\\x000'\n"
    assert "x000" not in answers[1].stdout
    assert "PermissionError" not in answers[1].stderr  # the daemon refused it, not the file


def test_request_that_is_cut_off_or_too_strange_does_not_stop_the_daemon(node: CniNode, pod: Namespace) -> None:
    for sent in (b"", b"{", b"ADD\0", b"ADD\0x\0\0eth0\0\0\0many\0{}", b"ADD\0x\0\0eth0\0\0netns\0\0{}"):
        with socket.socket(socket.AF_UNIX) as dialing:
            dialing.settimeout(10)
            dialing.connect(str(node.socket))
            dialing.sendall(sent)
            dialing.shutdown(socket.SHUT_WR)
            assert dialing.recv(100) == b""
    node.plugin("STATUS", "", "")


@pytest.mark.parametrize(
    "conf",
    [
        '{"socket":"SOCKET"}',
        ' { "x" : "socket" , "socket" : "SOCKET" , "y" : [ "socket", ",", "}" ] } ',
        '{"socket":"/nowhere","x":{"socket":"/nowhere"},"socket":"SOCKET"}',
        '{"x":"a\\"b\\\\","socket":"SOCKET"}',
        '{"\\u0073ocket":"SOCKET"}',
        '{"socket":"ESCAPED"}',
        '{"x":[[{"socket":1}],"socket",null],"socket":"SOCKET"}',
    ],
)
def test_socket_is_found_however_the_runtime_writes_the_configuration(node: CniNode, conf: str) -> None:
    escaped = "".join(f"\\u{ord(each):04x}" for each in str(node.socket))
    text = conf.replace("SOCKET", str(node.socket)).replace("ESCAPED", escaped)
    done = run_shim(node, "STATUS", '{"cniVersion":"1.0.0","name":"pods",' + text.strip()[1:])
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    "conf", ["", "{", "[]", '"socket"', '{"socket":5}', '{"socket":{}}', '{"socket":"x"', '{"socket"}', '{"a":b}']
)
@pytest.mark.parametrize("verb", ["ADD", "RENAME"])
def test_configuration_that_nothing_can_read_is_code_6_while_the_agent_is_down(
    node: CniNode, conf: str, verb: str
) -> None:
    """Go's runtime starts only for the answer, except for verbs that are not known."""
    done = run_shim(node, verb, conf)
    assert json.loads(done.stdout)["code"] == Code.DECODING_FAILURE, done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize("verb", ["ADD", "RENAME"])
def test_large_configuration_arrives_whole_and_a_larger_one_is_code_6(
    node: CniNode, pod: Namespace, container: str, verb: str
) -> None:
    conf = {"cniVersion": "1.0.0", "name": "pods", "socket": str(node.socket), "dns": {"search": []}}
    room = (1 << 20) - len(json.dumps(conf)) - 2
    conf["dns"] = {"search": ["s" * room]}
    env = {"CNI_CONTAINERID": container, "CNI_NETNS": pod.path, "CNI_IFNAME": "eth0"}
    done = run_shim(node, verb, json.dumps(conf), **env)
    answer = json.loads(done.stdout)
    if verb == "ADD":
        assert answer["dns"] == conf["dns"]
    else:
        assert answer["code"] == Code.INVALID_ENVIRONMENT
    done = run_shim(node, verb, json.dumps(conf) + " ", **env)
    assert json.loads(done.stdout)["code"] == Code.DECODING_FAILURE


@pytest.mark.parametrize(
    ("sent", "status", "output"),
    [(b"ab\0007", 7, "ab"), (b"\0000", 0, ""), (b"ab", 1, None), (b"ab\000", 1, None), (b"7", 1, None), (b"", 1, None)],
)
@pytest.mark.parametrize("verb", ["ADD", "RENAME"])
def test_answer_is_printed_only_when_it_is_whole(
    node: CniNode, tmp_path: Path, verb: str, sent: bytes, status: int, output: str | None
) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{tmp_path}/cni.sock")
        listening.listen()
        listening.settimeout(TIMEOUT_S)

        def serve() -> None:
            with listening.accept()[0] as connection:
                connection.settimeout(TIMEOUT_S)
                while connection.recv(65536):
                    pass
                for at in range(len(sent)):
                    connection.send(sent[at : at + 1])

        serving = threading.Thread(target=serve)
        serving.start()
        done = run_shim(node, verb, f'{{"cniVersion":"0.4.0","name":"pods","socket":"{tmp_path}/cni.sock"}}')
        serving.join()
    assert done.returncode == status
    if output is not None:
        assert done.stdout == output
    else:
        error = json.loads(done.stdout)
        assert (error["code"], error["cniVersion"]) == (Code.TRY_AGAIN_LATER, "0.4.0")
        assert error["details"] == f"{tmp_path}/cni.sock: the connection was closed without an answer"


@pytest.mark.parametrize("verb", ["ADD", "RENAME"])
@pytest.mark.parametrize("is_blocking", [True, False])
def test_long_answer_is_printed_whole_to_a_runtime_that_reads_late(
    node: CniNode, tmp_path: Path, verb: str, is_blocking: bool
) -> None:
    """The answer is longer than what the pipe holds."""
    sent = b"x" * 100_000
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{tmp_path}/cni.sock")
        listening.listen()
        listening.settimeout(TIMEOUT_S)
        output, stdout = os.pipe()
        os.set_blocking(stdout, is_blocking)
        room = fcntl.fcntl(stdout, fcntl.F_SETPIPE_SZ, 8192)
        with open(output, "rb") as reading:
            shim = subprocess.Popen(
                [str(node.plugins / "muster-cni")], stdin=subprocess.PIPE, stdout=stdout, env={"CNI_COMMAND": verb}
            )
            try:
                os.close(stdout)
                assert shim.stdin is not None
                with shim.stdin as writing:
                    writing.write(f'{{"socket":"{tmp_path}/cni.sock"}}'.encode())
                with listening.accept()[0] as connection:
                    connection.settimeout(TIMEOUT_S)
                    while connection.recv(65536):
                        pass
                    connection.sendall(sent + b"\0000")
                    eventually("the pipe is full", lambda: bytes_waiting(reading) == room)
                assert reading.read() == sent
                assert shim.wait(TIMEOUT_S) == 0
            finally:
                shim.kill()
                shim.wait()


def bytes_waiting(file: IO[bytes]) -> int:
    """Return how much a pipe holds."""
    return int.from_bytes(fcntl.ioctl(file, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_stdin_that_cannot_be_read_is_code_5(node: CniNode) -> None:
    folder = os.open("/", os.O_RDONLY)
    try:
        done = subprocess.run(
            [str(node.plugins / "muster-cni")],
            stdin=folder,
            env={"CNI_COMMAND": "ADD"},
            capture_output=True,
            check=False,
            timeout=60,
        )
    finally:
        os.close(folder)
    assert done.returncode == 1
    assert json.loads(done.stdout)["code"] == Code.IO_FAILURE


def run_shim(node: CniNode, verb: str, conf: str, **env: str) -> subprocess.CompletedProcess[str]:
    return node.process([str(node.plugins / "muster-cni")], input=conf, CNI_COMMAND=verb, **env)


def test_k8s_arguments_are_recorded_with_the_address(node: CniNode, pod: Namespace, container: str) -> None:
    arguments = "IgnoreUnknown=1;K8S_POD_NAMESPACE=train;K8S_POD_NAME=job-0;K8S_POD_UID=uid-1"
    node.plugin("ADD", pod, container, args=arguments)
    (held,) = node.store.all()
    assert (held.pod.namespace, held.pod.name, held.pod.uid) == ("train", "job-0", "uid-1")
    assert held.netns == pod.path
