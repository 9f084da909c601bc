"""The durable store: what a kill, a power loss, a full disk and a second agent leave."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import tempfile
import threading
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from muster.network.addresses import journal as journal_module
from muster.network.addresses.addresses import Addresses
from muster.network.addresses.attachment import AttachmentKey, PodRef, State
from muster.network.addresses.block import Block, BlockState, Family
from muster.network.addresses.bootclock import BootClock
from muster.network.addresses.errors import Exhausted, Reason, StoreError, StoreInUse

POD = PodRef("team", "train-0", "uid-0")


class FixedClock:
    def __init__(self, boot_id: str = "boot-1", now_s: float = 100.0) -> None:
        self.boot_id = boot_id
        self.at_s = now_s

    def now_s(self) -> float:
        return self.at_s


def key(number: int) -> AttachmentKey:
    return AttachmentKey(f"sandbox-{number}", "eth0")


def opened(folder: Path, clock: FixedClock, *cidrs: str, families: tuple[Family, ...] = (Family.IPV4,)) -> Addresses:
    store = Addresses(folder, clock, families=families)
    for cidr in cidrs:
        store.put_block(Block(cidr=cidr))
    return store


def crash(store: Addresses) -> None:
    """End as kill -9 does: the kernel closes the files, and nothing else happens."""
    store._journal.close()


def ip(store: Addresses, number: int) -> str:
    return store.reserve(key(number), POD, f"/run/netns/{number}").addresses[0].ip


def test_same_key_gets_the_same_address_again(tmp_path: Path) -> None:
    store = opened(tmp_path, FixedClock(), "10.0.0.0/28")
    assert ip(store, 1) == ip(store, 1) == "10.0.0.0"
    assert ip(store, 2) == "10.0.0.1"


def test_addresses_survive_a_kill_after_each_step(tmp_path: Path) -> None:
    clock = FixedClock()
    store = opened(tmp_path, clock, "10.0.0.0/28")
    first = store.reserve(key(1), POD, "/run/netns/1")
    crash(store)
    store = opened(tmp_path, clock)
    assert store.find(key(1)) == first
    store.attached(key(1), "mus1", "02:00:00:00:00:01")
    crash(store)
    store = opened(tmp_path, clock)
    found = store.find(key(1))
    assert found is not None
    assert (found.state, found.host_interface, found.mac) == (State.ATTACHED, "mus1", "02:00:00:00:00:01")
    store.releasing(key(1))
    crash(store)
    store = opened(tmp_path, clock)
    found = store.releasing(key(1))
    assert found is not None
    assert found.state is State.RELEASING
    store.release(key(1))
    crash(store)
    store = opened(tmp_path, clock)
    assert store.find(key(1)) is None
    assert store.status().cooling == 1


def test_released_address_is_not_given_out_during_its_cooldown_even_after_a_restart(tmp_path: Path) -> None:
    clock = FixedClock()
    store = opened(tmp_path, clock, "10.0.0.4/32")
    assert ip(store, 1) == "10.0.0.4"
    store.release(key(1))
    crash(store)
    clock.at_s += 29.9
    store = opened(tmp_path, clock)
    with pytest.raises(Exhausted) as refused:
        ip(store, 2)
    assert refused.value.reason is Reason.COOLING
    assert "1 cooling down" in refused.value.message
    clock.at_s += 0.2
    assert ip(store, 2) == "10.0.0.4"


def test_cooldown_begins_again_after_a_reboot(tmp_path: Path) -> None:
    clock = FixedClock(now_s=5000.0)
    store = opened(tmp_path, clock, "10.0.0.4/32")
    ip(store, 1)
    store.release(key(1))
    crash(store)
    rebooted = FixedClock("boot-2", 10.0)
    store = opened(tmp_path, rebooted)
    rebooted.at_s = 39.0
    assert store.status().free == 0
    rebooted.at_s = 41.0
    assert store.status().free == 1


def test_address_that_was_free_for_the_longest_time_is_given_out_first(tmp_path: Path) -> None:
    clock = FixedClock()
    store = opened(tmp_path, clock, "10.0.0.0/30")
    assert [ip(store, each) for each in (1, 2)] == ["10.0.0.0", "10.0.0.1"]
    store.release(key(2))
    store.release(key(1))
    clock.at_s += 31
    assert [ip(store, each) for each in (3, 4, 5, 6)] == ["10.0.0.2", "10.0.0.3", "10.0.0.1", "10.0.0.0"]


def test_dual_stack_gives_one_address_of_each_family_or_none(tmp_path: Path) -> None:
    store = opened(tmp_path, FixedClock(), "10.0.0.0/31", "fd00::/64", families=(Family.IPV4, Family.IPV6))
    found = store.reserve(key(1), POD, "").addresses
    assert [(each.ip, each.prefix) for each in found] == [("10.0.0.0", 32), ("fd00::1", 128)]
    store.reserve(key(2), POD, "")
    with pytest.raises(Exhausted, match="no free IPv4 address"):
        store.reserve(key(3), POD, "")
    families = store.status().families
    assert families[Family.IPV6].assigned == 2
    assert not store.status().can_add


def test_gateway_and_skipped_addresses_are_not_given_to_pods(tmp_path: Path) -> None:
    store = opened(tmp_path, FixedClock())
    store.put_block(Block(cidr="10.0.0.0/30", prefix=24, gateway="10.0.0.1", skipped=("10.0.0.0",)))
    found = store.reserve(key(1), POD, "").addresses[0]
    assert (found.ip, found.prefix, found.gateway) == ("10.0.0.2", 24, "10.0.0.1")
    assert store.status().families[Family.IPV4].total == 2


def test_second_agent_on_the_node_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path, FixedClock())
    with pytest.raises(StoreInUse, match="another agent uses"):
        opened(tmp_path, FixedClock())
    store.close()
    opened(tmp_path, FixedClock()).close()


@pytest.mark.parametrize("lost", [1, 5, 11])
def test_incomplete_last_record_is_cut_off(tmp_path: Path, lost: int) -> None:
    clock = FixedClock()
    store = opened(tmp_path, clock, "10.0.0.0/28")
    ip(store, 1)
    ip(store, 2)
    crash(store)
    path = tmp_path / "journal"
    os.truncate(path, path.stat().st_size - lost)
    store = opened(tmp_path, clock)
    assert store.find(key(1)) is not None
    assert store.find(key(2)) is None
    assert ip(store, 3) == "10.0.0.1"
    crash(store)
    assert opened(tmp_path, clock).find(key(3)) is not None


def test_zeros_at_the_end_after_a_power_loss_are_cut_off(tmp_path: Path) -> None:
    store = opened(tmp_path, FixedClock(), "10.0.0.0/28")
    ip(store, 1)
    crash(store)
    with (tmp_path / "journal").open("ab") as file:
        file.write(b"\0" * 4096)
    store = opened(tmp_path, FixedClock("boot-2"))
    assert store.find(key(1)) is not None
    ip(store, 2)
    crash(store)
    assert len(opened(tmp_path, FixedClock("boot-2")).all()) == 2


def damage_second_reservation(folder: Path) -> None:
    store = opened(folder, FixedClock(), "10.0.0.0/28")
    ip(store, 1)
    size = (folder / "journal").stat().st_size
    ip(store, 2)
    ip(store, 3)
    crash(store)
    with (folder / "journal").open("r+b") as file:
        file.seek(size + 12)
        file.write(b"\xff\xff")


def test_damage_before_the_end_without_a_power_loss_is_refused(tmp_path: Path) -> None:
    damage_second_reservation(tmp_path)
    with pytest.raises(StoreError, match=r"damaged at byte .* Drain the node, delete the file, and reboot"):
        opened(tmp_path, FixedClock())


def test_damage_after_a_power_loss_ends_the_readable_part(tmp_path: Path) -> None:
    damage_second_reservation(tmp_path)
    store = opened(tmp_path, FixedClock("boot-2"))
    assert [each.key for each in store.all()] == [key(1)]


@pytest.mark.parametrize("content", [b"{}", b"not a journal at all", b"\x01" * 400])
def test_foreign_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "journal").write_bytes(content)
    with pytest.raises(StoreError, match="not a journal"):
        opened(tmp_path, FixedClock())
    assert (tmp_path / "journal").read_bytes() == content


def test_file_stays_bounded_and_complete_under_churn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 4096)
    clock = FixedClock()
    store = opened(tmp_path, clock, "10.0.0.0/28")
    kept = ip(store, 0)
    largest = 0
    for number in range(1, 300):
        ip(store, number)
        store.release(key(number))
        clock.at_s += 10
        largest = max(largest, (tmp_path / "journal").stat().st_size)
    assert largest < 3 * 4096
    crash(store)
    again = opened(tmp_path, clock)
    assert [each.addresses[0].ip for each in again.all()] == [kept]
    assert again.status().cooling == 2  # released 10 and 20 s ago
    assert sorted(each.name for each in tmp_path.iterdir()) == ["journal", "lock"]


def test_full_disk_refuses_the_address_and_keeps_the_file_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FixedClock()
    store = opened(tmp_path, clock, "10.0.0.0/28")
    ip(store, 1)
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        write(descriptor, bytes(data[:7]))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journal_module.os, "write", full)
    with pytest.raises(StoreError, match="No space left on device; free or repair the disk"):
        ip(store, 2)
    with pytest.raises(StoreError):
        store.release(key(1))
    monkeypatch.undo()
    assert [each.key for each in store.all()] == [key(1)]
    assert ip(store, 3) == "10.0.0.1"
    crash(store)
    assert len(opened(tmp_path, clock).all()) == 2


def test_failed_flush_stops_the_store_until_it_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FixedClock()
    store = opened(tmp_path, clock, "10.0.0.0/28")

    def failing(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(journal_module.os, "fdatasync", failing)
    ip(store, 1)  # a power loss would end its interface too
    with pytest.raises(StoreError, match="refused a flush"):
        store.put_block(Block(cidr="10.0.1.0/28"))
    monkeypatch.undo()
    with pytest.raises(StoreError, match="restart the agent"):
        ip(store, 2)
    crash(store)
    ip(opened(tmp_path, clock), 2)


def test_folder_that_cannot_be_created_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="mount a writable folder"):
        opened(tmp_path / "file", FixedClock())


def test_parallel_adds_get_different_addresses(tmp_path: Path) -> None:
    store = opened(tmp_path, FixedClock(), "10.0.0.0/24")
    found: list[str] = []
    threads = [threading.Thread(target=lambda n=n: found.append(ip(store, n))) for n in range(150)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(set(found)) == 150


def reserve_until_killed(folder: str, lines: str) -> None:
    store = Addresses(Path(folder), BootClock())
    store.put_block(Block(cidr="10.0.0.0/20"))
    with open(lines, "a", buffering=1) as file:
        for number in range(4000):
            found = store.reserve(key(number), POD, "")
            file.write(f"{number} {found.addresses[0].ip}\n")
    signal.pause()


@pytest.mark.slow
def test_process_killed_at_any_moment_keeps_each_answered_address(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    process = multiprocessing.get_context("spawn").Process(
        target=reserve_until_killed, args=(str(tmp_path / "store"), str(lines))
    )
    process.start()
    while not lines.exists() or lines.stat().st_size < 2000:
        assert process.is_alive()
    process.kill()
    process.join(30)
    store = Addresses(tmp_path / "store", BootClock())
    answered = [line.split() for line in lines.read_text().splitlines()]
    for number, address in answered:
        found = store.find(key(int(number)))
        assert found is not None
        assert found.addresses[0].ip == address
    assert len(store.all()) - len(answered) in (0, 1)


def test_block_with_pods_cannot_be_removed_and_blocks_cannot_overlap(tmp_path: Path) -> None:
    store = opened(tmp_path, FixedClock(), "10.0.0.0/28")
    ip(store, 1)
    with pytest.raises(ValueError, match=r"has addresses of pods: 10\.0\.0\.0"):
        store.remove_block("10.0.0.0/28")
    with pytest.raises(ValueError, match="overlaps block"):
        store.put_block(Block(cidr="10.0.0.8/29"))
    with pytest.raises(ValueError, match="host bits set"):
        store.put_block(Block(cidr="10.0.1.1/28"))
    crash(store)
    assert len(opened(tmp_path, FixedClock()).blocks()) == 1


def test_missing_block_gives_no_address_until_it_is_back(tmp_path: Path) -> None:
    store = opened(tmp_path, FixedClock(), "10.0.0.0/31")
    ip(store, 1)
    store.put_block(Block(cidr="10.0.0.0/31", state=BlockState.MISSING))
    with pytest.raises(Exhausted):
        ip(store, 2)
    assert ip(store, 1) == "10.0.0.0"
    assert store.status().families[Family.IPV4].unused == 1
    store.put_block(Block(cidr="10.0.0.0/31"))
    assert ip(store, 2) == "10.0.0.1"


def test_address_in_use_on_the_node_is_not_given_out(tmp_path: Path) -> None:
    store = opened(tmp_path, FixedClock(), "10.0.0.0/31")
    store.hold(["10.0.0.0", "192.0.2.1"])
    assert ip(store, 1) == "10.0.0.1"
    assert store.status().families[Family.IPV4].held == 1
    store.hold([])
    assert ip(store, 2) == "10.0.0.0"


def test_add_that_finishes_after_del_is_refused(tmp_path: Path) -> None:
    store = opened(tmp_path, FixedClock(), "10.0.0.0/31")
    ip(store, 1)
    store.releasing(key(1))
    with pytest.raises(KeyError):
        store.attached(key(1), "mus1", "02:00:00:00:00:01")
    store.release(key(1))
    with pytest.raises(KeyError):
        store.attached(key(1), "mus1", "02:00:00:00:00:01")
    assert store.releasing(key(1)) is None
    store.release(key(1))


def test_texts_are_bounded(tmp_path: Path) -> None:
    store = opened(tmp_path, FixedClock(), "10.0.0.0/31")
    with pytest.raises(ValueError, match="too long"):
        store.reserve(AttachmentKey("x" * 600, "eth0"), POD, "")


def test_first_and_last_address_of_a_shared_subnet_are_not_of_pods() -> None:
    first, last = Block(cidr="10.0.0.0/30", prefix=24), Block(cidr="10.0.0.252/30", prefix=24)
    assert list(first.usable()) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert list(last.usable()) == ["10.0.0.252", "10.0.0.253", "10.0.0.254"]
    assert len(list(Block(cidr="10.0.0.0/31", prefix=31).usable())) == 2


def test_block_whose_settings_exclude_an_address_of_a_pod_is_still_in_use(tmp_path: Path) -> None:
    clock = FixedClock()
    store = opened(tmp_path, clock, "10.0.0.0/30")
    given = ip(store, 1)
    store.put_block(Block(cidr="10.0.0.0/30", skipped=(given,)))
    for _ in range(2):
        assert store.idle_blocks() == ()
        assert not store.retire_block("10.0.0.0/30")
        with pytest.raises(ValueError, match="has addresses of pods"):
            store.remove_block("10.0.0.0/30")
        crash(store)
        store = opened(tmp_path, clock)
    store.release(key(1))
    clock.at_s += 31
    assert given not in {ip(store, number) for number in (2, 3, 4)}
    for number in (2, 3, 4):
        store.release(key(number))
    clock.at_s += 31
    assert store.retire_block("10.0.0.0/30")


def test_threads_that_add_and_delete_at_once_never_share_an_address(tmp_path: Path) -> None:
    store = Addresses(tmp_path, FixedClock(), cooldown_s=0.0)
    store.put_block(Block(cidr="10.0.0.0/28"))
    used: dict[str, int] = {}
    wrong: list[str] = []

    def work(first: int) -> None:
        for number in range(first, first + 60):
            try:
                given = ip(store, number)
            except Exhausted:
                continue
            if used.setdefault(given, number) != number:
                wrong.append(given)
            store.attached(key(number), f"mus{number}", "02:00:00:00:00:01")
            store.releasing(key(number))
            del used[given]
            store.release(key(number))

    threads = [threading.Thread(target=work, args=(start * 1000,)) for start in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert store.all() == ()
    assert store.status().free == 16
    crash(store)
    assert Addresses(tmp_path, FixedClock(), cooldown_s=0.0).status().free == 16


def written(folder: Path) -> tuple[bytes, list[frozenset[str]]]:
    """A journal with a few attachments, and the attachments after each record."""
    store = opened(folder, FixedClock(), "10.0.0.0/28")
    states = [frozenset[str]()]
    for number in range(6):
        ip(store, number)
        states.append(frozenset(each.key.container_id for each in store.all()))
        if number % 2:
            store.release(key(number - 1))
            states.append(frozenset(each.key.container_id for each in store.all()))
    crash(store)
    return (folder / "journal").read_bytes(), states


@settings(max_examples=60, deadline=None)
@given(data=st.data(), boot_id=st.sampled_from(["boot-1", "boot-2"]))
def test_damaged_file_is_refused_or_read_up_to_the_damage(data: st.DataObject, boot_id: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        content, states = written(folder)
        damaged = bytearray(content)
        for _ in range(data.draw(st.integers(0, 3))):
            damaged[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        cut = data.draw(st.integers(0, len(content)))
        (folder / "journal").write_bytes(bytes(damaged[:cut]))
        try:
            store = opened(folder, FixedClock(boot_id))
        except StoreError:
            return
        assert frozenset(each.key.container_id for each in store.all()) in states
        crash(store)


@pytest.mark.parametrize(
    "block",
    [
        Block(cidr="10.0.0.5/28"),
        Block(cidr="subnet-a"),
        Block(cidr="10.0.0.0/28", prefix=40),
    ],
)
def test_block_that_cannot_be_read_is_refused_and_does_not_reach_the_file(tmp_path: Path, block: Block) -> None:
    clock = FixedClock()
    store = opened(tmp_path, clock)
    with pytest.raises(ValueError, match=r"10\.0\.0|subnet-a"):
        store.put_block(block)
    assert store.blocks() == ()
    crash(store)
    assert opened(tmp_path, clock).blocks() == ()


def test_store_stops_if_a_new_file_took_the_place_of_the_one_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FixedClock()
    store = opened(tmp_path, clock, "10.0.0.0/28")

    def failing(folder: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(journal_module, "sync_folder", failing)
    store._journal._compact_at = 1
    answered = []
    for number in range(3):
        with contextlib.suppress(StoreError):
            answered.append(ip(store, number))
    with pytest.raises(StoreError, match="restart the agent"):
        ip(store, 3)
    monkeypatch.undo()
    crash(store)
    again = opened(tmp_path, clock)
    assert set(answered) <= {address.ip for each in again.all() for address in each.addresses}
    ip(again, 9)


def test_containernetworking_plugins_498_kill_while_an_address_is_written_leaves_none_without_an_owner(
    tmp_path: Path,
) -> None:
    clock = FixedClock()
    store = opened(tmp_path / "whole", clock, "10.0.0.0/30")
    before = (tmp_path / "whole" / "journal").stat().st_size
    ip(store, 1)
    crash(store)
    written = (tmp_path / "whole" / "journal").read_bytes()
    for size in (before, before + 1, before + 8, before + 40, len(written) - 1, len(written)):
        folder = tmp_path / str(size)
        folder.mkdir()
        (folder / "journal").write_bytes(written[:size])
        again = opened(folder, clock)
        assert [each.key for each in again.all()] == ([key(1)] if size == len(written) else [])
        assert len({ip(again, number) for number in range(1, 5)}) == 4  # the whole block
        crash(again)
        assert len(opened(folder, clock).all()) == 4
