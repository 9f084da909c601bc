"""The host's part: cores that compute wrongly, disks that forget, memory with a bit that sticks."""

from __future__ import annotations

import hashlib
import os
from types import SimpleNamespace
from typing import Any

import pytest

from muster.gputest import reference
from muster.gputest.backend import Array
from muster.gputest.codes import Code
from muster.gputest.patterns import Pattern
from muster.gputest.probes import cpu, disk, memory
from muster.gputest.reference import ReferenceBackend
from tests.unit.gputest.runs import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench(ReferenceBackend(1))


@pytest.fixture(autouse=True)
def _little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_PIECE_BYTES", 1 << 20)
    monkeypatch.setattr(memory, "_HOST_CHUNK_BYTES", 1 << 20)


def test_a_healthy_host_passes(bench: Bench) -> None:
    allowed = os.sched_getaffinity(0)
    for test in (cpu.run, disk.run, memory.run_on_host):
        bench.run(test)
    assert bench.failed == set()
    assert len(bench.figures("cpu_slowest_core_mb_per_s")) == 1
    assert bench.figures("host_memory_tested_bytes") == [1 << 20], "without time one chunk"
    assert os.sched_getaffinity(0) == allowed


def test_a_core_that_computes_wrongly_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = max(os.sched_getaffinity(0))

    def sha256(data: bytes) -> Any:
        return hashlib.sha256(data + b"!" if os.sched_getaffinity(0) == {bad} else data)

    monkeypatch.setattr(cpu, "sha256", sha256)
    bench.run(cpu.run)
    assert bench.failed == {(Code.WRONG_DIGEST, "")}
    assert all(message.startswith(f"core {bad} computed") for message in bench.messages)


def test_a_disk_that_keeps_something_else_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(disk.os, "write", lambda file, block: write(file, bytes(block[:-1]) + b"!"))
    assert bench.run(disk.run).failed == {(Code.WRONG_DATA, "")}


def test_disk_with_short_writes_is_not_faulty(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(disk.os, "write", lambda file, block: write(file, block[:100_000]))
    assert bench.run(disk.run).failed == set()


def test_a_full_disk_is_said_to_be_full(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk.os, "statvfs", lambda folder: SimpleNamespace(f_bavail=3, f_frsize=1 << 20))
    assert bench.run(disk.run).failed == {(Code.DISK_FULL, "")}


def test_a_bit_that_sticks_in_the_hosts_memory_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    class Sticky(ReferenceBackend):
        def fill(self, device: int, words: Array, pattern: Pattern, first: int = 0) -> None:
            super().fill(device, words, pattern, first)
            words[7] |= 1 << 33

    monkeypatch.setattr(reference, "ReferenceBackend", Sticky)
    assert bench.run(memory.run_on_host).failed == {(Code.WRONG_WORD, "")}
