"""Ports that are chosen for programs which do not listen yet."""

from __future__ import annotations

import contextlib
import errno
import random
import socket
import subprocess
import sys
from collections import deque

import pytest

from muster.controlplane import ports
from muster.controlplane.ports import free_port, port_in_use

OTHER = """
import random, sys
from muster.controlplane.ports import free_port
random.SystemRandom.sample = lambda *_: list(map(int, sys.argv[1:]))
print(free_port(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Free ports, which each choice tries in this order."""
    found = [port for port in random.sample(range(20000, 32000), 20) if not port_in_use(port)]
    monkeypatch.setattr(random.SystemRandom, "sample", lambda *_: found)
    return found


def test_port_is_not_chosen_again_before_its_program_listens(order: list[int]) -> None:
    assert len({free_port() for _ in range(5)}) == 5


def test_port_that_another_process_has_chosen_is_passed_over_until_that_ends(order: list[int]) -> None:
    words = [sys.executable, "-c", OTHER, *map(str, order)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        theirs = int(other.stdout.readline())
        assert theirs in order
        mine = free_port()
        assert mine in order
        assert mine != theirs
        other.communicate("", timeout=30)
    rest = set()
    with contextlib.suppress(OSError):  # tests beside this one may have reserved some of them
        rest.update(iter(free_port, None))
    assert theirs in rest


def test_port_is_free_on_the_address_that_is_asked_about(order: list[int]) -> None:
    with socket.create_server(("127.0.0.9", order[0])):
        assert free_port(address="127.0.0.9") != order[0]
        assert port_in_use(order[0], "127.0.0.9")
        assert not port_in_use(order[0])


@pytest.mark.parametrize("address", ["192.0.2.1", "256.1.1.1"])
def test_address_that_this_machine_cannot_listen_on_is_an_error_at_once(order: list[int], address: str) -> None:
    with pytest.raises(OSError) as raised:  # noqa: PT011 - a name that is not found has no errno
        free_port(address=address)
    assert raised.value.errno != errno.EADDRINUSE


def test_reservations_of_a_process_are_limited(order: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_KEPT", 2)
    monkeypatch.setattr(ports, "_reservations", deque())
    first, *others = (free_port() for _ in range(3))
    assert first not in others
    assert free_port() == first
