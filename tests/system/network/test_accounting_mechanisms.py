"""The bench of accounting's mechanisms on the kernel: a run with few turns, its counters, and what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.network import mechanisms
from bench.network.mechanisms import Contender, Size
from bench.network.mechanisms_list import MECHANISMS
from tests.support.networknamespaces import need_namespaces
from tests.support.waiting import eventually
from tests.system.network.test_bpf import need_bpf

SMALL = Size(pods=20, turns=2, packets=50)
LINKS = 22
"""Of all mechanisms together."""


@pytest.fixture(autouse=True)
def supported() -> None:
    """Skip where the kernel lacks one of the mechanisms."""
    need_namespaces("nft")
    need_bpf()
    if reason := mechanisms.unsupported():
        pytest.skip(reason)


@contextlib.contextmanager
def nothing_left_open() -> Iterator[None]:
    """Compare this process's descriptors, which hold all namespaces, maps, programs and links."""
    before = os.listdir("/proc/self/fd")
    yield
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_few_turns_give_a_figure_for_each_mechanism_and_leave_nothing() -> None:
    with nothing_left_open():
        figures, _ = mechanisms.measure(1, SMALL)
    for version in (4, 6):
        assert figures[f"ipv{version}_none_ns"] > 0
        assert all(f"ipv{version}_{name}_extra_percent_max" in figures for name in MECHANISMS if name != "none")


@pytest.mark.parametrize("name", [name for name in MECHANISMS if "empty" not in name and name != "none"])
def test_packet_that_the_bench_did_not_expect_fails_the_check(name: str) -> None:
    with nothing_left_open(), contextlib.ExitStack() as stack:
        contender = Contender(name, stack, SMALL)
        contender.turn(4)
        contender.probe()
        contender.check()
        contender.clients[6].send(b"unexpected")
        with pytest.raises(AssertionError, match=f"{name} counted"):
            contender.check(settled_s=0.1)


def test_interrupted_run_ends_with_its_links() -> None:
    command = [sys.executable, "-m", "bench.network", "--part", "mechanisms", "--repetitions", "100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            eventually("the bench takes turns", lambda: links(process.pid) == LINKS)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, output) == (1, ""), errors
    assert "Aborted" in errors
    assert "Traceback" not in errors


def links(process: int) -> int:
    """Return how many links of eBPF a process has descriptors of."""
    count = 0
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += os.readlink(descriptor) == "anon_inode:bpf_link"
    return count
