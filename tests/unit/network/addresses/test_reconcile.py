"""Which addresses the reconciler frees, and which it does not on the word of one view."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from muster.network.addresses.addresses import Addresses
from muster.network.addresses.attachment import Address, Assigned, AttachmentKey, PodRef, State
from muster.network.addresses.block import Block
from muster.network.addresses.reconcile.comparison import CONFIRM_S, YOUNG_S, compare
from muster.network.addresses.reconcile.plan import Plan, Problem
from muster.network.addresses.reconcile.reconciler import Reconciler
from muster.network.addresses.reconcile.snapshot import KernelView, Sandbox, Snapshot

NOW_S = 10_000.0


def key(name: str) -> AttachmentKey:
    return AttachmentKey(name, "eth0")


def attachment(name: str = "a", age_s: float = YOUNG_S, **changes: object) -> Assigned:
    fields: dict[str, object] = {
        "key": key(name),
        "addresses": (Address("10.0.0.1", 32),),
        "state": State.ATTACHED,
        "pod": PodRef("team", f"pod-{name}", "uid"),
        "host_interface": f"mus{name}",
        "mac": "02:00:00:00:00:01",
        "boot_id": "now",
        "since_s": NOW_S - age_s,
    }
    return Assigned(**(fields | changes))  # type: ignore[arg-type]


def snapshot(
    *attachments: Assigned,
    interfaces: Mapping[str, str] | None = None,
    sandboxes: Mapping[str, bool] | None = None,
    at_s: float = NOW_S,
) -> Snapshot:
    kernel = {key(name): frozenset({ip}) for name, ip in (interfaces or {}).items()}
    runtime = {name: Sandbox(name, ready) for name, ready in (sandboxes or {}).items()}
    return Snapshot(attachments, KernelView(kernel), runtime, "now", at_s, {})


def twice(first: Snapshot, second: Snapshot | None = None) -> Plan:
    later = second or first
    return compare(later._replace(now_s=later.now_s + CONFIRM_S), compare(first, {}).suspects)


def problems(plan: Plan) -> list[Problem]:
    return [finding.problem for finding in plan.findings]


def test_leaked_address_is_freed_only_after_a_second_view_containerd_5768() -> None:
    seen = snapshot(attachment(), sandboxes={"other": True})
    first = compare(seen, {})
    assert first.free == ()
    assert problems(first) == [Problem.LEAKED]
    assert twice(seen).free == (attachment(),)
    early = compare(seen._replace(now_s=NOW_S + CONFIRM_S - 1), first.suspects)
    assert early.free == ()


def test_suspicion_ends_when_a_view_disagrees_in_between() -> None:
    gone = snapshot(attachment(), sandboxes={"other": True})
    back = snapshot(attachment(), interfaces={"a": "10.0.0.1"}, sandboxes={"a": True})
    suspects = compare(back, compare(gone, {}).suspects).suspects
    assert suspects == {}
    assert compare(gone._replace(now_s=NOW_S + CONFIRM_S), suspects).free == ()


@pytest.mark.parametrize("ready", [True, False])
def test_runtime_alone_holds_an_address(ready: bool) -> None:
    plan = twice(snapshot(attachment(), sandboxes={"a": ready}))
    assert plan.free == ()
    assert problems(plan) == ([Problem.DISCONNECTED] if ready else [])


def test_kernel_alone_holds_an_address_projectcalico_calico_5044() -> None:
    plan = twice(snapshot(attachment(), interfaces={"a": "10.0.0.1"}, sandboxes={"other": True}))
    assert plan.free == ()
    assert problems(plan) == [Problem.ORPHANED]


@pytest.mark.parametrize("missing", ["kernel", "runtime"])
def test_nothing_is_freed_without_one_of_the_views(missing: str) -> None:
    seen = snapshot(attachment(), sandboxes={"other": True})
    blind = seen._replace(**{missing: None})
    assert twice(seen, blind).free == ()
    assert twice(seen, blind).blind == (missing,)


def test_runtime_that_lists_nothing_while_interfaces_exist_is_not_believed_amazon_vpc_cni_k8s_3824() -> None:
    seen = snapshot(attachment(), attachment("b"), interfaces={"b": "10.0.0.2"})
    assert twice(seen).free == ()
    assert twice(seen).blind == ("runtime",)


def test_empty_node_frees_what_a_crash_left() -> None:
    assert twice(snapshot(attachment())).free == (attachment(),)


@pytest.mark.parametrize("state", State)
def test_young_attachment_is_left_alone_because_its_sandbox_may_not_be_listed_yet(state: State) -> None:
    young = attachment(age_s=YOUNG_S - CONFIRM_S - 1, state=state, host_interface="", mac="")
    assert twice(snapshot(young, sandboxes={"other": True})).free == ()


def test_attachment_of_an_earlier_boot_is_freed_whatever_its_age() -> None:
    old = attachment(boot_id="before", since_s=NOW_S * 5)
    assert twice(snapshot(old, sandboxes={"other": True})).free == (old,)
    assert twice(snapshot(old, sandboxes={"a": False})).free == ()


def test_macvlan_is_not_judged_by_a_kernel_view_that_cannot_show_it() -> None:
    macvlan = attachment(host_interface="")
    assert twice(snapshot(macvlan, sandboxes={"other": True})).free == ()
    assert problems(twice(snapshot(macvlan, sandboxes={"a": True}))) == []
    begun = attachment(host_interface="", mac="", addresses=(Address("10.0.0.9", 24, "10.0.0.1"),))
    assert twice(snapshot(begun, sandboxes={"other": True})).free == ()
    rebooted = attachment(host_interface="", boot_id="before")
    assert twice(snapshot(rebooted, sandboxes={"other": True})).free == (rebooted,)


def test_addresses_of_unrecorded_interfaces_and_of_the_node_are_held_amazon_vpc_cni_k8s_711() -> None:
    seen = snapshot(attachment(), interfaces={"a": "10.0.0.1", "x": "10.0.0.7"}, sandboxes={"a": True})
    assert seen.kernel is not None
    plan = compare(seen._replace(kernel=seen.kernel._replace(local=frozenset({"10.0.0.9"}))), {})
    assert plan.hold == {"10.0.0.7", "10.0.0.9"}
    assert problems(plan) == [Problem.UNRECORDED]
    without_runtime = seen._replace(runtime=None)
    assert compare(without_runtime, {}).hold == {"10.0.0.7"}


def test_new_sandbox_of_the_same_pod_does_not_keep_the_old_address_azure_container_networking_4497() -> None:
    old, new = attachment("old"), attachment("new", addresses=(Address("10.0.0.2", 32),))
    plan = twice(snapshot(old, new, interfaces={"new": "10.0.0.2"}, sandboxes={"new": True}))
    assert plan.free == (old,)


def test_problems_of_blocks_are_findings() -> None:
    plan = compare(snapshot()._replace(provider={"10.0.0.0/28": "not listed", "": "fragmented"}), {})
    assert [(each.problem, each.addresses) for each in plan.findings] == [
        (Problem.BLOCK, ()),
        (Problem.BLOCK, ("10.0.0.0/28",)),
    ]


class Views:
    """A node whose views the test sets."""

    def __init__(self, folder: Path) -> None:
        self.boot_id = "now"
        self.at_s = NOW_S
        self.kernel = KernelView({})
        self.runtime: dict[str, Sandbox] | None = {"other": Sandbox("other", True)}
        self.store = Addresses(folder, self)
        self.store.put_block(Block(cidr="10.0.0.0/30"))
        self.entered: list[AttachmentKey] = []
        self.on_enter = lambda: None
        self.reconciler = Reconciler(
            self.store,
            self,
            kernel=lambda: self.kernel,
            runtime=self.look,
            provider=dict,
            exclusive=self.exclusive,
        )

    def now_s(self) -> float:
        return self.at_s

    async def look(self) -> dict[str, Sandbox] | None:
        return self.runtime

    @contextlib.contextmanager
    def exclusive(self, name: AttachmentKey) -> Iterator[None]:
        self.entered.append(name)
        self.on_enter()
        yield

    async def confirm(self) -> None:
        await self.reconciler.step()
        self.at_s += CONFIRM_S
        await self.reconciler.step()


@pytest.fixture
def views(tmp_path: Path) -> Views:
    made = Views(tmp_path)
    made.store.reserve(key("a"), PodRef("team", "pod", "uid"), "/run/netns/a")
    made.store.attached(key("a"), "musa", "02:00:00:00:00:01")
    made.at_s += YOUNG_S
    return made


async def test_freed_address_cools_down(views: Views) -> None:
    await views.confirm()
    assert views.store.find(key("a")) is None
    assert views.store.status().cooling == 1
    assert views.reconciler.freed == 1
    assert views.entered == [key("a")]


async def test_add_that_came_in_between_keeps_its_address(views: Views) -> None:
    await views.reconciler.step()
    views.at_s += CONFIRM_S
    views.on_enter = lambda: views.store.reserve(key("a"), PodRef("team", "pod", "uid"), "/run/netns/a")  # type: ignore[assignment,func-returns-value]
    await views.reconciler.step()
    assert views.store.find(key("a")) is not None
    assert views.reconciler.freed == 0


async def test_interface_that_appears_in_between_keeps_its_address(views: Views) -> None:
    def appear() -> None:
        views.kernel = KernelView({key("a"): frozenset()})

    await views.reconciler.step()
    views.at_s += CONFIRM_S
    views.on_enter = appear
    await views.reconciler.step()
    assert views.store.find(key("a")) is not None


async def test_address_of_an_interface_without_a_record_is_not_given_out(views: Views) -> None:
    views.kernel = KernelView({key("x"): frozenset({"10.0.0.1"}), key("a"): frozenset({"10.0.0.0"})})
    await views.reconciler.step()
    assert views.store.reserve(key("b"), PodRef(), "").addresses[0].ip == "10.0.0.2"
