"""The reconciler against a real kernel, the CNI plugin and a real containerd over CRI."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.network.addresses.addresses import Addresses
from muster.network.addresses.attachment import AttachmentKey, PodRef
from muster.network.addresses.bootclock import BootClock
from muster.network.addresses.reconcile.comparison import CONFIRM_S, YOUNG_S
from muster.network.addresses.reconcile.kernel import look_at_kernel
from muster.network.addresses.reconcile.plan import Problem
from muster.network.addresses.reconcile.reconciler import Reconciler
from muster.network.addresses.reconcile.runtime import look_at_runtime
from muster.network.cni.names import host_interface_name
from tests.support.cninode import CniNode, cni_node
from tests.support.criruntime import CriRuntime, cri_runtime, need_containerd
from tests.support.networknamespaces import need_namespaces


class LaterClock(BootClock):
    """The node's clock, which the test sets forward."""

    later_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + self.later_s


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CniNode]:
    need_namespaces("nft")
    with cni_node(tmp_path_factory.mktemp("cni")) as made:
        yield made


@pytest.fixture(scope="module")
def runtime(node: CniNode) -> Iterator[CriRuntime]:
    need_containerd()
    node.configure(version="1.0.0")  # containerd 1.6 does not accept results of 1.1.0
    with cri_runtime(node, node.folder / "cri") as made:
        yield made


def reconciler(node: CniNode, runtime: CriRuntime, clock: LaterClock, store: Addresses | None = None) -> Reconciler:
    return Reconciler(
        store or node.store,
        clock,
        kernel=lambda: node.node.host.call(look_at_kernel),
        runtime=lambda: look_at_runtime(runtime.socket),
        provider=dict,
        exclusive=node.operations.exclusive,
    )


def compare(checked: Reconciler, clock: LaterClock) -> list[Problem]:
    """Compare twice, with the time between that a confirmation takes."""
    asyncio.run(checked.step())
    clock.later_s += CONFIRM_S
    return [each.problem for each in asyncio.run(checked.step()).findings]


def test_life_of_a_sandbox_of_containerd_leaves_no_finding_and_no_address(node: CniNode, runtime: CriRuntime) -> None:
    clock = LaterClock()
    sandbox = runtime.run_sandbox("plain")
    key = AttachmentKey(sandbox, "eth0")
    found = node.store.find(key)
    assert found is not None
    assert (found.pod.namespace, found.pod.name) == ("team", "plain")
    view = node.node.host.call(look_at_kernel)
    assert view is not None
    assert view.interfaces == {key: frozenset(each.ip for each in found.addresses)}
    clock.later_s = YOUNG_S
    checked = reconciler(node, runtime, clock)
    assert compare(checked, clock) == []
    runtime.kill()
    assert compare(checked, clock) == []
    assert checked.plan.blind == ("runtime",)
    runtime.start()
    runtime.remove_sandbox(sandbox)
    assert compare(checked, clock) == []
    assert node.store.all() == ()
    assert checked.freed == 0


def test_address_whose_del_never_came_is_freed_containerd_5768(node: CniNode, runtime: CriRuntime) -> None:
    clock = LaterClock()
    kept = runtime.run_sandbox("kept")
    lost = AttachmentKey("forgotten-by-the-runtime", "eth0")
    pod = node.network.namespace("lost")
    node.plugin("ADD", pod, lost.container_id)
    checked = reconciler(node, runtime, clock)
    clock.later_s = YOUNG_S
    assert compare(checked, clock) == [Problem.ORPHANED]  # the kernel alone holds it
    assert node.store.find(lost) is not None
    node.node.host.run("ip", "link", "delete", host_interface_name(lost))  # as when the namespace ends
    assert compare(checked, clock) == [Problem.LEAKED]
    assert checked.freed == 1
    assert [each.key.container_id for each in node.store.all()] == [kept]
    assert compare(checked, clock) == []
    runtime.remove_sandbox(kept)


def test_lost_store_does_not_give_addresses_of_running_pods_to_others_amazon_vpc_cni_k8s_711(
    node: CniNode, runtime: CriRuntime, tmp_path: Path
) -> None:
    sandbox = runtime.run_sandbox("running")
    used = {each.ip for held in node.store.all() for each in held.addresses}
    empty = Addresses(tmp_path / "new", BootClock())
    for block in node.store.blocks():
        empty.put_block(block)
    clock = LaterClock()
    checked = reconciler(node, runtime, clock, empty)
    assert compare(checked, clock) == [Problem.UNRECORDED]
    given = set()
    for number in range(20):
        reserved = empty.reserve(AttachmentKey(f"new-{number}", "eth0"), PodRef(), "")
        given |= {each.ip for each in reserved.addresses}
    assert not given & used
    empty.close()
    shutil.rmtree(tmp_path / "new")
    runtime.remove_sandbox(sandbox)
    assert node.links() == []


def test_interface_that_vanishes_under_a_running_sandbox_is_reported(node: CniNode, runtime: CriRuntime) -> None:
    clock = LaterClock()
    sandbox = runtime.run_sandbox("cut")
    node.node.host.run("ip", "link", "delete", host_interface_name(AttachmentKey(sandbox, "eth0")))
    clock.later_s = YOUNG_S
    checked = reconciler(node, runtime, clock)
    assert compare(checked, clock) == [Problem.DISCONNECTED]
    assert checked.freed == 0
    runtime.remove_sandbox(sandbox)
    assert node.store.all() == ()


def test_alias_that_another_program_wrote_is_not_believed(node: CniNode) -> None:
    node.node.host.run("ip", "link", "add", "musfake", "type", "veth", "peer", "name", "other")
    node.node.host.run("ip", "link", "set", "musfake", "alias", "muster:someone/eth0")
    view = node.node.host.call(look_at_kernel)
    assert view is not None
    assert view.interfaces == {}
    assert "192.0.2.1" in view.local
    node.node.host.run("ip", "link", "set", "musfake", "up")
    node.node.host.run("ip", "route", "add", "10.1.8.77/32", "dev", "musfake")  # as another CNI plugin does
    view = node.node.host.call(look_at_kernel)
    assert view is not None
    assert "10.1.8.77" in view.local
    node.node.host.run("ip", "link", "delete", "musfake")
