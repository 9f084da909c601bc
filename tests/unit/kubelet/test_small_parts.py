"""Address and GPU pools, back-off, atomic folders."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.embedded.kubelet.containers.atomic_folder import write_atomically
from muster.embedded.kubelet.containers.backoff import RestartBackoff
from muster.embedded.kubelet.pods.pool import AddressPool, DevicePool, Exhausted


def test_backoff_starts_at_once_then_ten_seconds_doubling_to_five_minutes() -> None:
    backoff = RestartBackoff()
    assert [backoff.after_run(1) for _ in range(8)] == [0, 10, 20, 40, 80, 160, 300, 300]
    assert backoff.after_run(600) == 0


def test_addresses_are_unique_and_reused_last() -> None:
    pool = AddressPool("127.11.0.0/29", reserved=("127.11.0.1",))
    taken = [pool.take() for _ in range(5)]
    assert taken == [f"127.11.0.{host}" for host in range(2, 7)]
    with pytest.raises(Exhausted, match="127\\.11\\.0\\.0/29"):
        pool.take()
    pool.give_back("127.11.0.4")
    assert pool.take() == "127.11.0.4"


def test_address_is_kept_where_it_is_free() -> None:
    pool = AddressPool("127.11.0.0/24", reserved=("127.11.0.1",))
    assert pool.take("127.11.0.9") == "127.11.0.9"
    assert pool.take("127.11.0.9") == "127.11.0.2"
    assert pool.take("10.0.0.1") == "127.11.0.3"


@given(st.lists(st.integers(min_value=-3, max_value=3), max_size=30))
def test_a_gpu_is_never_given_twice(steps: list[int]) -> None:
    pool = DevicePool(4)
    held: list[list[int]] = []
    for step in steps:
        if step >= 0:
            try:
                held.append(pool.take(step))
            except Exhausted:
                assert sum(map(len, held)) + step > 4
        elif held:
            pool.give_back(held.pop(0))
        everything = [device for devices in held for device in devices]
        assert len(everything) == len(set(everything))
        assert set(everything) <= {0, 1, 2, 3}


@pytest.mark.slow
def test_folder_changes_all_at_once(tmp_path: Path) -> None:
    """A reader who opens the folder once sees both files old or both new."""
    folder = tmp_path / "volume"
    write_atomically(folder, {"a": (b"0", 0o644), "b": (b"0", 0o644)})
    torn = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                handle = os.open(folder / "..data", os.O_RDONLY)  # one generation, whatever becomes of the link
            except FileNotFoundError:
                continue  # replaced between the link and what it named
            try:
                values = set()
                for name in ("a", "b"):
                    file = os.open(name, os.O_RDONLY, dir_fd=handle)
                    values.add(os.read(file, 16))
                    os.close(file)
                if len(values) != 1:
                    torn.append(values)
            except FileNotFoundError:
                pass  # replaced and removed meanwhile
            finally:
                os.close(handle)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(200):
        text = str(number).encode()
        assert write_atomically(folder, {"a": (text, 0o644), "b": (text, 0o644)}) is (number > 0)
    done.set()
    reader.join()
    assert torn == []
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith("..")) == ["a", "b"]
    assert len([path for path in folder.iterdir() if path.name.startswith("..")]) == 2


def test_folder_drops_what_is_gone_and_refuses_to_be_left(tmp_path: Path) -> None:
    write_atomically(tmp_path, {"a": (b"1", 0o600), "sub/b": (b"2", 0o644)})
    assert (tmp_path / "sub" / "b").read_bytes() == b"2"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    write_atomically(tmp_path, {"a": (b"1", 0o600)})
    assert not (tmp_path / "sub").exists()
    for path in ("../x", "/x", "a/../../x"):
        with pytest.raises(ValueError, match="leaves the volume"):
            write_atomically(tmp_path, {path: (b"", 0o644)})
