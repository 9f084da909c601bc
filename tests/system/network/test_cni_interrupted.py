"""ADD and DEL that fail or are killed at each step: no address is lost, or free while an interface has it."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import select
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from muster.network.addresses.journal import Journal
from muster.network.cni.errors import Code
from muster.network.netlink.socket import NetlinkError, NetlinkSocket
from tests.support.cninode import CniFailed, CniNode, cni_node
from tests.support.networknamespaces import Namespace, need_namespaces

_STEPS_MAX = 40
_STARTED_S = 30.0

_STEPS: tuple[tuple[type, str], ...] = (
    (NetlinkSocket, "batch"),
    (NetlinkSocket, "get"),
    (NetlinkSocket, "dump"),
    (NetlinkSocket, "link_number"),
    (NetlinkSocket, "link_mtu"),
    (Journal, "append"),
    (Journal, "flush"),
)
"""What ADD and DEL do to the kernel and to the disk."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CniNode]:
    need_namespaces()
    with cni_node(tmp_path_factory.mktemp("cni"), cooldown_s=0.0) as made:
        yield made


def interposed(act: Callable[[int, bool], None], steps: Sequence[tuple[type, str]] = _STEPS) -> Iterator[None]:
    """Call `act(number, is_after)` around each step, until the end of the block."""
    numbers = itertools.count(1)

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            number = next(numbers)
            act(number, False)
            result = function(*args, **kwargs)
            act(number, True)
            return result

        return step

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in steps:
            patch.setattr(owner, name, around(getattr(owner, name)))
        yield


interposing = contextlib.contextmanager(interposed)


def addresses_in_pod(pod: Namespace) -> set[str]:
    shown = json.loads(pod.run("ip", "-j", "address", "show", "scope", "global"))
    return {address["local"] for each in shown for address in each.get("addr_info", ()) if "local" in address}


def has_interface(pod: Namespace) -> bool:
    return any(each["ifname"] == "eth0" for each in json.loads(pod.run("ip", "-j", "link")))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_add_that_fails_at_any_step_undoes_itself(node: CniNode, after: bool) -> None:
    steps = [each for each in _STEPS if not (after and each[1] == "append")]  # what is written has not failed
    failed, codes = 0, set()
    for place in range(1, _STEPS_MAX):
        pod = node.network.namespace("pod")

        def fail(number: int, is_after: bool, place: int = place) -> None:
            if number == place and is_after is after:
                raise NetlinkError(errno.EIO, "injected")

        try:
            with interposing(fail, steps):
                node.plugin("ADD", pod, f"fails-{after}-{place}")
        except CniFailed as error:
            codes.add(error.code)
            failed += 1
        else:
            node.plugin("DEL", pod, f"fails-{after}-{place}")
            break
        assert not has_interface(pod), place
        assert node.links() == []
        assert node.store.all() == ()
    assert failed > 5
    assert codes == {Code.KERNEL_REFUSED}


def crash(node: CniNode, place: int, after: bool, request: Callable[[], Any]) -> bool:
    """Run a request against a daemon that is killed at one step; return whether the kill came before the answer."""
    node.stop()
    reader, writer = os.pipe()

    def fork() -> int:
        child = os.fork()
        if child:
            return child
        try:
            os.close(reader)
            kill = lambda number, is_after: (  # noqa: E731
                os.kill(os.getpid(), signal.SIGKILL) if number == place and is_after is after else None
            )
            node.restart_here()
            with interposing(kill):
                os.write(writer, b"started")
                signal.pause()
        finally:
            os._exit(1)

    child = node.node.host.call(fork)
    os.close(writer)
    try:
        assert select.select([reader], [], [], _STARTED_S)[0], "the daemon did not start"
        assert os.read(reader, 100) == b"started"
        try:
            request()
        except CniFailed as error:
            code = error.code
        else:
            code = 0
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        node.restart()
    assert code in (0, Code.TRY_AGAIN_LATER)
    return code != 0


def expect_no_address_free_that_a_pod_has(node: CniNode, pod: Namespace) -> None:
    held = {address.ip for each in node.store.all() for address in each.addresses}
    assert addresses_in_pod(pod) <= held


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_kill_at_any_step_of_add_leaves_nothing_that_del_add_or_gc_does_not_finish(node: CniNode, after: bool) -> None:
    kills = 0
    for place in range(1, _STEPS_MAX):
        pod = node.network.namespace("pod")
        container = f"kill-add-{after}-{place}"
        killed = crash(node, place, after, lambda pod=pod, container=container: node.plugin("ADD", pod, container))
        expect_no_address_free_that_a_pod_has(node, pod)
        if place % 3 == 0 or not killed:
            node.plugin("DEL", pod, container)
        elif place % 3 == 1:
            result = node.plugin("ADD", pod, container)
            node.plugin("CHECK", pod, container, prevResult=result)
            node.plugin("DEL", pod, container)
        else:
            node.plugin("GC", "", "", **{"cni.dev/valid-attachments": []})
        assert node.links() == []
        assert node.store.all() == ()
        if not killed:
            break
        kills += 1
    assert kills > 5


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_kill_at_any_step_of_del_leaves_nothing_that_del_does_not_finish(node: CniNode, after: bool) -> None:
    kills = 0
    for place in range(1, _STEPS_MAX):
        pod = node.network.namespace("pod")
        container = f"kill-del-{after}-{place}"
        node.plugin("ADD", pod, container)
        killed = crash(node, place, after, lambda pod=pod, container=container: node.plugin("DEL", pod, container))
        expect_no_address_free_that_a_pod_has(node, pod)
        node.plugin("DEL", pod if place % 2 else "", container)
        assert node.links() == []
        assert node.store.all() == ()
        if not killed:
            break
        kills += 1
    assert kills > 2


def test_address_is_held_while_the_kernel_refuses_to_delete_the_interface(node: CniNode) -> None:
    pod = node.network.namespace("pod")
    result = node.plugin("ADD", pod, "stuck")

    def fail(number: int, is_after: bool) -> None:
        if number >= 2 and not is_after:  # the first step records that DEL began
            raise NetlinkError(errno.EBUSY, "injected")

    with interposing(fail), pytest.raises(CniFailed):
        node.plugin("DEL", pod, "stuck")
    (held,) = node.store.all()
    assert {each.ip for each in held.addresses} == {each["address"].partition("/")[0] for each in result["ips"]}
    other = node.network.namespace("other")
    taken = node.plugin("ADD", other, "next")
    assert not {each["address"] for each in taken["ips"]} & {each["address"] for each in result["ips"]}
    for pod_of, container in ((pod, "stuck"), (other, "next")):
        node.plugin("DEL", pod_of, container)
    assert node.store.all() == ()


def test_stopping_daemon_leaves_the_socket_of_the_one_that_took_over(node: CniNode) -> None:
    successor = node.make_server()
    node.node.host.call(successor.start)
    node.stop_server()
    try:
        node.plugin("STATUS", "", "")
        assert [each.name for each in node.folder.glob(".cni.sock*")] == []
    finally:
        successor.stop()
    with pytest.raises(CniFailed) as failed:
        node.plugin("STATUS", "", "")
    assert failed.value.code == Code.NOT_AVAILABLE
