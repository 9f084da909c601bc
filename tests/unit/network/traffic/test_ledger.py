"""Issue 16.A1: a job's bytes are counted once, whatever is killed or restarted, and never decrease.

The kernel is a model that follows the contract of `Backend`. It keeps counters while the agent is away. It loses them
in a power loss, or when another program deletes them.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muster.kube import durablefile
from muster.network.localpods.pod import LocalPod
from muster.network.traffic.backend import Count, CounterKey, CountersGone, Subject
from muster.network.traffic.classes import Classes
from muster.network.traffic.ledger.charges import Owner, Share, split
from muster.network.traffic.ledger.ledger import DAMAGED, FILE, Ledger, Limits
from muster.network.traffic.ledger.state import Interface, LedgerState, read_state
from muster.network.traffic.meter import Meter
from muster.network.traffic.report import ENDED_JOB, UNKNOWN_JOB
from muster.network.traffic.wanted import Wanted, wanted

SECONDS = 1_700_000_000.0
Step = Callable[[str], None]


class Killed(BaseException):
    """kill -9 of the process."""


class Kernel:
    """Counters as the kernel keeps them, with every byte that it ever counted."""

    def __init__(self) -> None:
        self.instance_number = 0
        self.exists = False
        self.counters: dict[CounterKey, Count] = {}
        self.step: Step = lambda name: None

    @property
    def name(self) -> str:
        return "model"

    def setup(self, classes: Classes) -> None:
        self.step("setup")
        if not self.exists:
            self.exists = True
            self.instance_number += 1
            self.counters = {CounterKey("host", "internet", "in"): Count(0, 0)}

    def instance(self) -> str:
        self.step("instance")
        if not self.exists:
            raise CountersGone("gone")
        return str(self.instance_number)

    def read(self) -> Mapping[CounterKey, Count]:
        self.step("read")
        if not self.exists:
            raise CountersGone("gone")
        return dict(self.counters)

    def put(self, subjects: Sequence[Subject]) -> Mapping[CounterKey, Count]:
        self.step("put")
        if not self.exists:
            raise CountersGone("gone")
        kept = {each.id for each in subjects} | {"host"}
        finals = {key: self.counters.pop(key) for key in list(self.counters) if key.subject not in kept}
        for each in subjects:
            self.counters.setdefault(CounterKey(each.id, "internet", "in"), Count(0, 0))
        self.step("put done")
        return finals

    def remove(self, ids: Sequence[str]) -> Mapping[CounterKey, Count]:
        raise NotImplementedError

    def teardown(self) -> None:
        self.exists, self.counters = False, {}

    def carry(self, subject: str, size: int) -> bool:
        """Count a packet; returns whether the subject is counted."""
        key = CounterKey(subject, "internet", "in")
        if not self.exists or key not in self.counters:
            return False
        self.counters[key] = self.counters[key].plus(Count(1, size))
        return True


def pod(name: str, job: str, address: str) -> LocalPod:
    return LocalPod(namespace="team-a", name=name, uid=f"uid-{name}", job=job, addresses=(address,), phase="Running")


def wanted_of(pods: Sequence[LocalPod]) -> Wanted:
    return wanted(pods, lambda each: (), "", ())


def totals(state: LedgerState) -> dict[str, int]:
    found: defaultdict[str, int] = defaultdict(int)
    for row in state.rows:
        found[row.job] += row.bytes
    return {job: size for job, size in found.items() if size}


def measure(kernel: Kernel, ledger: Ledger, pods: Sequence[LocalPod], now_s: float = SECONDS, **more: Any) -> None:
    meter = Meter(kernel, Classes(), ledger)
    meter.setup()
    meter.measure(wanted_of(pods), more.get("shares", {}), more.get("boot", "b1"), more.get("interfaces", ()), now_s)


class World:
    """A node whose agent is killed at random steps. It knows what a correct ledger holds."""

    def __init__(self, seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.kernel = Kernel()
        self.kernel.step = self.step
        self.pods: dict[str, LocalPod] = {}
        self.counted: defaultdict[str, int] = defaultdict(int)
        """By job: what the kernel counted."""
        self.losable: defaultdict[str, int] = defaultdict(int)
        """Of it, what no commit had covered when the kernel's counters vanished."""
        self.published: defaultdict[str, int] = defaultdict(int)
        self.owners: dict[str, str] = {}
        self.kill_in = -1
        self.ledger: Ledger | None = None
        self.meter: Meter | None = None
        for name in ("open", "write", "fsync", "replace"):
            monkeypatch.setattr(durablefile.os, name, self.stepped(name, getattr(os, name)))

    def stepped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if name == "write" and self.kill_in == 1:
                function(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            self.step(name)
            return function(*arguments)

        return call

    def step(self, name: str) -> None:
        if self.kill_in >= 0:
            self.kill_in -= 1
            if self.kill_in == 0:
                self.kill_in = -1
                raise Killed(name)

    def traffic(self) -> None:
        for _ in range(self.rng.randrange(4)):
            subject = self.rng.choice([key.subject for key in self.kernel.counters] or ["none"])
            size = self.rng.randrange(1, 1500)
            if self.kernel.carry(subject, size):
                self.counted[self.owners[subject]] += size

    def one_pass(self) -> None:
        for subject, owner in wanted_of(tuple(self.pods.values())).owners.items():
            self.owners[subject] = owner.job
        try:
            if self.ledger is None:
                self.ledger = Ledger(self.folder)
            if self.meter is None:
                self.meter = Meter(self.kernel, Classes(), self.ledger)
                self.meter.setup()
            self.meter.measure(wanted_of(tuple(self.pods.values())), {}, "b1", (), SECONDS)
        except Killed:
            self.ledger = self.meter = None
            return
        self.publish()

    def publish(self) -> None:
        assert self.ledger is not None
        now = totals(self.ledger.committed)
        for job, before in self.published.items():
            assert now.get(job, 0) >= before, job
        self.published.update(now)

    def lose_counters(self) -> None:
        """What a power loss, or another program, takes away: the increase since the last commit."""
        state = read_state(self.folder / FILE)
        baselines: dict[tuple[str, str], int] = {}
        if state is not None and state.instance == str(self.kernel.instance_number):
            baselines = {(each.subject, each.cls): each.bytes for each in state.baselines}
        for key, count in self.kernel.counters.items():
            self.losable[self.owners[key.subject]] += count.bytes - baselines.get((key.subject, key.cls), 0)
        self.kernel.teardown()

    def act(self) -> None:
        what = self.rng.random()
        if what < 0.45:
            self.kill_in = self.rng.randrange(1, 14) if self.rng.random() < 0.5 else -1
            self.one_pass()
            self.kill_in = -1
        elif what < 0.75:
            self.traffic()
        elif what < 0.85:
            name = f"p{self.rng.randrange(1000)}"
            self.pods[name] = pod(name, f"job-{self.rng.randrange(4)}", f"10.0.0.{self.rng.randrange(1, 20)}")
        elif what < 0.93 and self.pods:
            del self.pods[self.rng.choice(sorted(self.pods))]
        elif what < 0.96:
            self.lose_counters()
            self.ledger = self.meter = None
        elif what < 0.98:
            self.lose_counters()
        else:
            self.ledger = self.meter = None


@pytest.mark.parametrize("seed", range(25))
def test_no_byte_is_lost_or_counted_twice_over_kills_reboots_and_deleted_counters(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(seed, tmp_path, monkeypatch)
    world.one_pass()
    for _ in range(150):
        world.act()
    world.one_pass()
    assert world.ledger is not None
    found = totals(world.ledger.committed)
    for job, counted in world.counted.items():
        assert counted - world.losable[job] <= found.get(job, 0) <= counted, job
    assert set(found) <= {*world.counted, *(key for key in found if not found[key])}


def test_a_power_loss_in_the_middle_of_a_write_leaves_a_whole_ledger(tmp_path: Path) -> None:
    kernel, ledger = Kernel(), Ledger(tmp_path)
    measure(kernel, ledger, [pod("a", "train", "10.0.0.1")])
    (tmp_path / f".{FILE}.new").write_bytes(b"half of a led")
    kernel.carry(_subject(kernel), 700)
    again = Ledger(tmp_path)
    measure(kernel, again, [pod("a", "train", "10.0.0.1")])
    assert totals(again.committed)["train"] == 700


def test_a_full_disk_stops_what_is_published_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, ledger = Kernel(), Ledger(tmp_path)
    a, b = pod("a", "one", "10.0.0.1"), pod("b", "two", "10.0.0.2")
    meter = Meter(kernel, Classes(), ledger)
    meter.setup()
    meter.measure(wanted_of([a]), {}, "b1", (), SECONDS)
    kernel.carry(_subject(kernel), 500)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(durablefile.os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            meter.measure(wanted_of([b]), {}, "b1", (), SECONDS)
        assert totals(ledger.committed).get("one", 0) == 0
        assert kernel.carry(_subject(kernel, "uid-b"), 300), "a pod that came while the disk was full is counted"
        assert {key.subject[:5] for key in kernel.counters} == {"host", "uid-a", "uid-b"}, "the ledger on disk has none"
    meter.measure(wanted_of([b]), {}, "b1", (), SECONDS)
    assert totals(ledger.committed) == {"one": 500, "two": 300}
    assert totals(Ledger(tmp_path).committed) == {"one": 500, "two": 300}


def test_a_damaged_ledger_is_put_aside_and_the_new_one_does_not_count_old_bytes_again(tmp_path: Path) -> None:
    kernel, ledger = Kernel(), Ledger(tmp_path)
    pods = [pod("a", "train", "10.0.0.1")]
    measure(kernel, ledger, pods)
    kernel.carry(_subject(kernel), 900)
    measure(kernel, ledger, pods)
    content = bytearray((tmp_path / FILE).read_bytes())
    content[40] ^= 1
    (tmp_path / FILE).write_bytes(content)
    fresh = Ledger(tmp_path)
    assert "checksum" in fresh.damage
    assert (tmp_path / DAMAGED).read_bytes() == content
    measure(kernel, fresh, pods)
    assert totals(fresh.committed) == {}
    assert fresh.committed.ledger_id != ledger.committed.ledger_id
    kernel.carry(_subject(kernel), 40)
    measure(kernel, fresh, pods)
    assert totals(fresh.committed) == {"train": 40}


def test_a_ledger_that_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(IsADirectoryError):
        Ledger(tmp_path)
    assert (tmp_path / FILE).is_dir()


def test_a_pod_that_ended_while_the_agent_was_down_is_charged_to_its_job(tmp_path: Path) -> None:
    kernel, ledger = Kernel(), Ledger(tmp_path)
    measure(kernel, ledger, [pod("a", "train", "10.0.0.1")])
    kernel.carry(_subject(kernel), 1234)
    again = Ledger(tmp_path)
    measure(kernel, again, [])
    assert totals(again.committed) == {"train": 1234}
    assert all(key.subject == "host" for key in kernel.counters)
    on_disk = read_state(tmp_path / FILE)
    assert on_disk is not None
    assert "train" not in {owner.job for owner in on_disk.owners.values()}


def test_last_bytes_of_a_pod_between_the_reading_and_its_removal_are_counted(tmp_path: Path) -> None:
    kernel, ledger = Kernel(), Ledger(tmp_path)
    measure(kernel, ledger, [pod("a", "train", "10.0.0.1")])
    subject = _subject(kernel)
    kernel.step = lambda name: None if name != "put" else assert_counted(kernel.carry(subject, 55))
    measure(kernel, ledger, [])
    state = read_state(tmp_path / FILE)
    assert state is not None
    assert totals(state) == {"train": 55}
    assert "train" not in {owner.job for owner in state.owners.values()}


def assert_counted(counted: bool) -> None:
    assert counted


def test_an_address_that_goes_to_another_job_at_once_is_split_between_the_two(tmp_path: Path) -> None:
    kernel, ledger = Kernel(), Ledger(tmp_path)
    measure(kernel, ledger, [pod("a", "one", "10.0.0.1")])
    kernel.carry(_subject(kernel), 10)
    old = pod("a", "one", "10.0.0.1")
    both = [old, msgspec.structs.replace(old, name="b", uid="uid-b", job="two", created_s=9.0)]
    measure(kernel, ledger, both)
    kernel.carry(_subject(kernel), 20)
    measure(kernel, ledger, both)
    assert totals(ledger.committed) == {"one": 10, "two": 20}


def test_jobs_that_ended_long_ago_are_summed_in_one_row(tmp_path: Path) -> None:
    kernel, ledger = Kernel(), Ledger(tmp_path, Limits(keep_s=100.0, accounts_max=2))
    whole = 0
    for number in range(6):
        measure(kernel, ledger, [pod(f"p{number}", f"job-{number}", "10.0.0.1")], SECONDS + number)
        kernel.carry(_subject(kernel), 100 + number)
        whole += 100 + number
    measure(kernel, ledger, [], SECONDS + 6)
    measure(kernel, ledger, [], SECONDS + 7)
    found = totals(ledger.committed)
    assert sum(found.values()) == whole
    assert found == {ENDED_JOB: 100 + 101 + 102 + 103, "job-4": 104, "job-5": 105}
    measure(kernel, ledger, [], SECONDS + 200)
    assert totals(ledger.committed) == {ENDED_JOB: whole}


def test_counters_of_an_unknown_pod_are_a_row_of_their_own(tmp_path: Path) -> None:
    kernel, ledger = Kernel(), Ledger(tmp_path)
    measure(kernel, ledger, [])
    kernel.counters[CounterKey("stranger", "internet", "in")] = Count(1, 77)
    measure(kernel, ledger, [])
    assert totals(ledger.committed) == {UNKNOWN_JOB: 77}


def test_nothing_is_written_while_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, ledger = Kernel(), Ledger(tmp_path)
    pods = [pod("a", "train", "10.0.0.1")]
    measure(kernel, ledger, pods)
    measure(kernel, ledger, pods, SECONDS + 5)
    before = (tmp_path / FILE).stat().st_mtime_ns
    measure(kernel, ledger, pods, SECONDS + 10)
    assert (tmp_path / FILE).stat().st_mtime_ns == before


def test_interfaces_that_are_new_replaced_or_from_another_boot_count_from_the_right_value(tmp_path: Path) -> None:
    kernel, ledger = Kernel(), Ledger(tmp_path)

    def nic(value: int, boot: str = "b1", name: str = "eth0") -> int:
        measure(kernel, ledger, [], boot=boot, interfaces=(Interface(name, value, 0, 0, 0),))
        return ledger.committed.nic[0]

    assert nic(1000) == 0, "what an interface had counted before the ledger began"
    assert nic(1500) == 500
    assert nic(40, boot="b2") == 540
    assert nic(10, boot="b2") == 550, "made again under its name"
    assert nic(5000, boot="b2", name="eth1") == 550
    assert nic(5001, boot="b2", name="eth1") == 551


def test_rdma_ports_add_to_the_job_over_reboots_and_restarts_of_the_driver(tmp_path: Path) -> None:
    owner = {"mlx5_0/1": Owner("ns", "train", "vision")}

    def port(received: int, boot: str = "b1", *, restart: bool = False) -> int:
        nonlocal ledger
        if restart:
            ledger = Ledger(tmp_path)
        ledger.absorb("i1", {}, {}, SECONDS)
        ledger.absorb_ports(boot, [Interface("mlx5_0/1", received, 0, received // 100, 0)], owner)
        ledger.absorb_interfaces(boot, ())
        ledger.commit(SECONDS)
        return sum(row.bytes for row in ledger.committed.rows if (row.job, row.cls) == ("train", "rdma"))

    ledger = Ledger(tmp_path)
    assert port(10**12) == 0, "what it had counted before"
    assert port(10**12 + 500) == 500
    assert port(10**12 + 700, restart=True) == 700
    assert port(300, boot="b2", restart=True) == 1000
    assert port(50, boot="b2") == 1050, "the driver was loaded again"


@pytest.mark.parametrize("seed", range(20))
def test_parts_of_a_shared_counter_add_up_to_it(seed: int) -> None:
    rng = random.Random(seed)
    shares = [Share(Owner("n", f"j{each}", ""), rng.choice([0, 1, 3, 10**9])) for each in range(rng.randrange(1, 9))]
    count = Count(rng.randrange(10**6), rng.randrange(10**12))
    parts = split(count, shares)
    assert sum(part.bytes for _, part in parts) == count.bytes
    assert sum(part.packets for _, part in parts) == count.packets
    assert all(part.bytes >= 0 for _, part in parts)
    weights = [each.weight for each in shares]
    for (_, part), weight in zip(parts, weights, strict=True):
        expected = count.bytes * weight / sum(weights) if any(weights) else count.bytes / len(weights)
        assert abs(part.bytes - expected) <= 1


def _subject(kernel: Kernel, start: str = "uid-") -> str:
    return next(key.subject for key in kernel.counters if key.subject.startswith(start))
