"""Situations in which other CNI plugins lost addresses or connections. The number is that of the thread."""

from __future__ import annotations

import json
import platform
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.network.addresses.addresses import Addresses
from muster.network.addresses.attachment import AttachmentKey, PodRef
from muster.network.addresses.block import Family
from muster.network.addresses.bootclock import BootClock
from muster.network.cni.errors import Code
from muster.network.cni.invocation import Invocation
from tests.support.cninode import CniFailed, CniNode, cni_node
from tests.support.networknamespaces import Namespace, connected, need_namespaces, transfer
from tests.support.waiting import eventually

PODS = 150


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CniNode]:
    need_namespaces()
    with cni_node(tmp_path_factory.mktemp("cni"), cooldown_s=0.0) as made:
        yield made


@pytest.fixture
def pod(node: CniNode) -> Iterator[Namespace]:
    yield node.network.namespace("pod")
    node.plugin("GC", "", "", **{"cni.dev/valid-attachments": []})
    assert node.store.all() == ()
    assert node.links() == []


def ips_of(result: dict[str, Any]) -> list[str]:
    return [each["address"].partition("/")[0] for each in result["ips"]]


def test_aws_vpc_cni_1939_del_with_an_empty_namespace_frees_the_address(node: CniNode, pod: Namespace) -> None:
    node.plugin("ADD", pod, "c1939")
    node.plugin("DEL", "", "c1939")
    assert node.store.all() == ()
    assert node.links() == []


@pytest.mark.parametrize("path", ["/run/netns/gone", "/proc/4194303/ns/net", "a file that a reboot left"])
def test_containernetworking_plugins_1196_del_after_a_reboot_frees_the_address(
    node: CniNode, pod: Namespace, tmp_path: Path, path: str
) -> None:
    class OtherBoot(BootClock):
        def __init__(self) -> None:
            super().__init__()
            self.boot_id = "another boot"

    node.stop()
    store = Addresses(node.folder / "addresses", OtherBoot(), families=(Family.IPV4, Family.IPV6), cooldown_s=0.0)
    key = AttachmentKey("c1196", "eth0")
    store.reserve(key, PodRef(), path, "pods")
    store.attached(key, "", "02:00:00:00:00:01")
    store.close()
    node.restart()
    if " " in path:
        path = str(tmp_path / "left")
        Path(path).touch()
    node.plugin("DEL", path, "c1196", prevResult=None)
    assert node.store.find(key) is None


def test_containerd_6359_calico_5044_del_succeeds_when_repeated_unknown_or_without_prev_result(
    node: CniNode, pod: Namespace
) -> None:
    result = node.plugin("ADD", pod, "c6359")
    node.plugin("DEL", pod, "c6359", prevResult=result)
    for _ in range(2):
        node.plugin("DEL", pod, "c6359")
    node.plugin("DEL", pod, "never-added")
    node.plugin("DEL", "/run/netns/never", "never-added")


def test_containerd_5768_add_whose_runtime_gave_up_is_finished_by_a_later_del(node: CniNode, pod: Namespace) -> None:
    with node.operations.exclusive(AttachmentKey("c5768", "eth0")):  # ADD waits, as on a slow node
        process = subprocess.Popen(
            node.node.host.argv(str(node.plugins / "muster-cni")),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={
                "CNI_COMMAND": "ADD",
                "CNI_CONTAINERID": "c5768",
                "CNI_NETNS": pod.path,
                "CNI_IFNAME": "eth0",
            },
        )
        assert process.stdin is not None
        process.stdin.write(f'{{"cniVersion":"1.0.0","name":"pods","socket":"{node.socket}"}}'.encode())
        process.stdin.close()
        eventually("the daemon works on it", lambda: waits_for_the_daemon(process.pid))
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    node.plugin("DEL", pod, "c5768")
    eventually("nothing is left", lambda: node.store.all() == () and node.links() == [])


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere Go's runtime starts first")
def test_request_is_made_before_the_runtime_of_go_starts_its_threads(node: CniNode, pod: Namespace) -> None:
    with node.operations.exclusive(AttachmentKey("early", "eth0")):
        process = start_add(node, pod, "early")
        eventually("the daemon works on it", lambda: waits_for_the_daemon(process.pid))
        threads = len(list(Path(f"/proc/{process.pid}/task").iterdir()))
    output, _ = process.communicate(timeout=30)
    assert threads == 1
    assert json.loads(output)["interfaces"]


def waits_for_the_daemon(pid: int) -> bool:
    """Whether the process sleeps in a read of a socket: it has sent its request."""
    return Path(f"/proc/{pid}/wchan").read_text() != "0" and "unix_stream" in Path(f"/proc/{pid}/wchan").read_text()


def test_add_that_begins_after_the_runtime_gave_up_and_called_del_does_nothing(
    node: CniNode, pod: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = threading.Event()
    key_of = Invocation.key

    def key(invocation: Invocation) -> AttachmentKey:
        if invocation.document.command == "ADD":
            received.set()
        return key_of(invocation)

    monkeypatch.setattr(Invocation, "key", key)
    with node.operations.exclusive(AttachmentKey("late", "eth0")):
        process = start_add(node, pod, "late")
        assert received.wait(30)
        process.kill()  # as a runtime does after its deadline; then it calls DEL, which nothing holds to an order
        process.communicate(timeout=30)
    node.stop()  # waits for what is being answered
    node.restart()
    assert node.links() == []
    assert node.store.all() == ()


def start_add(node: CniNode, pod: Namespace, container_id: str) -> subprocess.Popen[str]:
    """Start the shim, and give it its whole request."""
    process = subprocess.Popen(
        node.node.host.argv(str(node.plugins / "muster-cni")),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            "CNI_COMMAND": "ADD",
            "CNI_CONTAINERID": container_id,
            "CNI_NETNS": pod.path,
            "CNI_IFNAME": "eth0",
        },
    )
    assert process.stdin is not None
    process.stdin.write(f'{{"cniVersion":"1.0.0","name":"pods","socket":"{node.socket}"}}')
    process.stdin.close()
    process.stdin = None
    return process


def test_containerd_12923_gc_ends_what_a_restarted_runtime_never_deletes(node: CniNode, pod: Namespace) -> None:
    kept = node.network.namespace("kept")
    node.plugin("ADD", pod, "forgotten")
    result = node.plugin("ADD", kept, "c12923")
    node.plugin("GC", "", "", **{"cni.dev/valid-attachments": [{"containerID": "c12923", "ifname": "eth0"}]})
    assert [each.key.container_id for each in node.store.all()] == ["c12923"]
    node.plugin("CHECK", kept, "c12923", prevResult=result)


def test_cilium_22203_del_while_the_agent_is_away_fails_at_once_and_works_when_it_is_back(
    node: CniNode, pod: Namespace
) -> None:
    result = node.plugin("ADD", pod, "c22203")
    node.stop()
    began_s = time.monotonic()
    for verb in ("DEL", "ADD"):
        with pytest.raises(CniFailed) as failed:
            node.plugin(verb, pod, "c22203")
        assert failed.value.code == Code.TRY_AGAIN_LATER
    assert time.monotonic() - began_s < 30  # others wait for as long as this
    with connected(pod, ips_of(result)[0], node.node.outside) as (accepted, dialing):
        transfer(dialing, accepted, 1000)  # connections of pods do not need the agent
    node.restart()
    node.plugin("CHECK", pod, "c22203", prevResult=result)
    node.plugin("DEL", pod, "c22203")
    assert node.store.all() == ()


def test_cilium_15824_recreated_pod_with_the_same_address_is_reached_at_its_new_hardware_address(
    node: CniNode, pod: Namespace
) -> None:
    free = {ips_of(node.plugin("ADD", pod, "first"))[0]}
    node.plugin("DEL", pod, "first")
    node.store.hold(str(each) for each in next(iter(node.store.blocks())).network if str(each) not in free)
    try:
        again = node.network.namespace("again")
        result = node.plugin("ADD", again, "second")
        assert set(ips_of(result)) & free == free
        with connected(again, ips_of(result)[0], node.node.outside) as (accepted, dialing):
            transfer(dialing, accepted, 1000)
    finally:
        node.store.hold(())


def test_more_requests_than_workers_wait_and_all_are_answered(node: CniNode, pod: Namespace) -> None:
    clients = []
    with node.operations.exclusive(AttachmentKey("waits", "eth0")):
        for _ in range(20):
            dialing = socket.socket(socket.AF_UNIX)
            dialing.settimeout(60)
            dialing.connect(str(node.socket))
            dialing.sendall(b'DEL\0waits\0\0eth0\0\0\0\0{"cniVersion":"1.0.0","name":"pods"}')
            dialing.shutdown(socket.SHUT_WR)
            clients.append(dialing)
    answers = [client.recv(1000) for client in clients]
    for client in clients:
        client.close()
    assert answers == [b"\0000"] * 20


def test_azure_2817_150_pods_at_once_get_different_addresses_and_all_have_a_network(node: CniNode) -> None:
    node.configure()
    pods = [node.network.namespace(f"p{number}") for number in range(PODS)]
    processes = [start_add(node, pod, f"c2817-{number}") for number, pod in enumerate(pods)]
    printed = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * PODS, printed[:1]
    held = [address.ip for each in node.store.all() for address in each.addresses]
    assert len(held) == len(set(held)) == 2 * PODS
    assert len(node.links()) == PODS
    last = next(each for each in node.store.all() if each.key.container_id == f"c2817-{PODS - 1}")
    with connected(pods[-1], last.addresses[0].ip, pods[0]) as (accepted, dialing):
        transfer(dialing, accepted, 1000)
