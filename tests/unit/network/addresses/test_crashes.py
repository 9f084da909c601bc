"""kill -9 at each step of ADD and DEL, of the agent and of the node, in any order: no address twice, none lost.

The model of a node has a kernel whose interfaces survive the agent but not a reboot, a runtime that may lose its
sandboxes' teardown, and pods. After each step no two interfaces have one address. After enough time without faults all
addresses that no pod has are free.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from muster.network.addresses.addresses import Addresses
from muster.network.addresses.attachment import AttachmentKey, PodRef
from muster.network.addresses.block import Block, Family
from muster.network.addresses.errors import Exhausted
from muster.network.addresses.pool import COOLDOWN_S
from muster.network.addresses.reconcile.comparison import CONFIRM_S, YOUNG_S
from muster.network.addresses.reconcile.reconciler import Reconciler
from muster.network.addresses.reconcile.snapshot import KernelView, Sandbox

SIZE = 8
STEPS = st.sampled_from([4, 4, 4, 3, 2, 1, 0])  # 4: not killed


class Killed(Exception):
    """The agent was killed."""


class CrashingNode(RuleBasedStateMachine):
    """One node, and what kubelet and runtime do."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = contextlib.ExitStack()
        self.path = Path(self.folder.enter_context(tempfile.TemporaryDirectory()))
        self.boot = 0
        self.at_s = 1000.0
        self.interfaces: dict[AttachmentKey, str] = {}
        self.sandboxes: dict[AttachmentKey, bool] = {}
        self.numbers = 0
        self.left = -1
        self.recent: dict[str, float] = {}

    @property
    def boot_id(self) -> str:
        return f"boot-{self.boot}"

    def now_s(self) -> float:
        return self.at_s

    def teardown(self) -> None:
        self.store.close()
        self.folder.close()

    @initialize()
    def install(self) -> None:
        self.open()
        self.store.put_block(Block(cidr=f"10.0.0.0/{32 - SIZE.bit_length() + 1}"))

    def open(self) -> None:
        self.store = Addresses(self.path, self)
        known = {each.key for each in self.store.all()}
        self.store.hold(ip for key, ip in self.interfaces.items() if key not in known)
        self.reconciler = Reconciler(
            self.store,
            self,
            kernel=lambda: KernelView({key: frozenset({ip}) for key, ip in self.interfaces.items()}),
            runtime=self.list_sandboxes,
            provider=dict,
            exclusive=self.exclusive,
        )

    @contextlib.contextmanager
    def exclusive(self, key: AttachmentKey) -> Iterator[None]:
        yield

    async def list_sandboxes(self) -> dict[str, Sandbox]:
        return {key.container_id: Sandbox(key.container_id, ready) for key, ready in self.sandboxes.items()}

    def step(self) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1

    def killed_after(self, steps: int, work: Callable[[], None]) -> bool:
        """Do the work with a kill after so many of its steps. Returns whether it was killed."""
        self.left = steps
        try:
            work()
        except Killed:
            self.store.close()
            self.open()
            return True
        finally:
            self.left = -1
        return False

    def add(self, key: AttachmentKey) -> None:
        """What the CNI daemon does for ADD."""
        self.step()
        assigned = self.store.reserve(key, PodRef("n", key.container_id, key.container_id), "")
        self.step()
        ip = assigned.addresses[0].ip
        assert self.recent.get(ip, -COOLDOWN_S) + COOLDOWN_S <= self.at_s, "the address has not cooled down"
        self.interfaces[key] = ip
        self.step()
        self.store.attached(key, f"mus{key.container_id}", "02:00:00:00:00:01")
        self.step()

    def delete(self, key: AttachmentKey) -> None:
        """What the CNI daemon does for DEL."""
        self.step()
        self.store.releasing(key)
        self.step()
        self.remove_interface(key)
        self.step()
        self.store.release(key)
        self.step()

    def remove_interface(self, key: AttachmentKey) -> None:
        ip = self.interfaces.pop(key, None)
        if ip is not None:
            self.recent[ip] = self.at_s

    @rule(steps=STEPS)
    def pod_starts(self, steps: int) -> None:
        self.numbers += 1
        key = AttachmentKey(f"s{self.numbers}", "eth0")
        with contextlib.suppress(Exhausted):
            if not self.killed_after(steps, lambda: self.add(key)):
                self.sandboxes[key] = True
                return
        # The runtime undoes a sandbox whose ADD failed, unless it is interrupted too (containerd#5768).
        if steps % 2:
            self.killed_after(steps, lambda: self.delete(key))

    @rule(steps=STEPS, data=st.data(), forgets=st.booleans())
    def pod_ends(self, steps: int, data: st.DataObject, forgets: bool) -> None:
        if not self.sandboxes:
            return
        key = data.draw(st.sampled_from(sorted(self.sandboxes)))
        self.sandboxes[key] = False
        if not self.killed_after(steps, lambda: self.delete(key)) or forgets:
            del self.sandboxes[key]
            if forgets:
                self.remove_interface(key)  # it deletes the network namespace

    @rule(seconds=st.sampled_from([1.0, 20.0, 70.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.at_s += seconds

    @rule()
    def agent_compares(self) -> None:
        asyncio.run(self.reconciler.step())

    @rule()
    def agent_is_killed(self) -> None:
        self.store.close()
        self.open()

    @rule()
    def node_is_rebooted(self) -> None:
        self.store.close()
        self.boot += 1
        self.at_s = 20.0
        self.interfaces.clear()
        self.recent.clear()
        self.sandboxes = dict.fromkeys(self.sandboxes, False)
        self.open()

    @invariant()
    def no_address_is_used_twice_and_each_used_one_is_held(self) -> None:
        used = list(self.interfaces.values())
        assert len(used) == len(set(used))
        for key, ip in self.interfaces.items():
            found = self.store.find(key)
            assert found is not None
            assert found.addresses[0].ip == ip

    @rule()
    def in_the_end_nothing_leaks(self) -> None:
        for key, ready in list(self.sandboxes.items()):
            if not ready:
                self.delete(key)
                del self.sandboxes[key]
        for key in self.interfaces.keys() - self.sandboxes.keys():
            self.remove_interface(key)
        self.at_s += YOUNG_S
        for _ in range(2):
            self.at_s += CONFIRM_S
            asyncio.run(self.reconciler.step())
        self.at_s += COOLDOWN_S + 1
        assert {each.key for each in self.store.all()} == self.sandboxes.keys()
        count = self.store.status().families[Family.IPV4]
        assert count.free == SIZE - len(self.sandboxes)


TestCrashingNode = CrashingNode.TestCase
TestCrashingNode.pytestmark = pytest.mark.slow
TestCrashingNode.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
