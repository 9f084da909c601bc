from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.trainingjobs.supervisor import exits, processes
from muster.trainingjobs.supervisor.remoteshell import wire

KEY = bytes(range(32))


def channels() -> tuple[wire.Channel, wire.Channel]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        left = socket.create_connection(server.getsockname())
        right, _ = server.accept()
    return wire.Channel(left, KEY, "client", "n"), wire.Channel(right, KEY, "server", "n")


@given(st.lists(st.tuples(st.integers(0, 5), st.binary(max_size=2000)), min_size=1, max_size=20))
def test_frames_arrive_as_sent_and_in_order(frames: list[tuple[int, bytes]]) -> None:
    client, server = channels()
    with client.sock, server.sock:
        for kind, payload in frames:
            client.send(kind, payload)
        received: list[tuple[int, bytes]] = []
        while len(received) < len(frames):
            received += server.receive()
        assert received == frames


@given(data=st.data(), payload=st.binary(max_size=50))
def test_one_flipped_bit_is_never_delivered(data: st.DataObject, payload: bytes) -> None:
    client, server = channels()
    with client.sock, server.sock:
        raw, other = socket.socketpair()
        with raw, other:
            sender = wire.Channel.__new__(wire.Channel)
            sender.__dict__.update(client.__dict__, sock=raw)
            sender.send(wire.COMMAND, payload)
            sent = bytearray(other.recv(4096))
        bit = data.draw(st.integers(0, 8 * len(sent) - 1))
        sent[bit // 8] ^= 1 << bit % 8
        client.sock.sendall(sent)
        client.sock.shutdown(socket.SHUT_WR)
        delivered: list[tuple[int, bytes]] = []

        def receive_all() -> None:
            while True:
                delivered.extend(server.receive())

        with pytest.raises(ConnectionError):
            receive_all()
        assert delivered == []


def test_a_frame_sent_twice_is_refused() -> None:
    client, server = channels()
    with client.sock, server.sock:
        client.send(wire.STDIN, b"once")
        assert server.receive() == [(wire.STDIN, b"once")]
        client._sent = 0
        client.send(wire.STDIN, b"once")
        with pytest.raises(ConnectionError):
            server.receive()


@given(st.lists(st.text(), min_size=1), st.lists(st.text(), min_size=1))
def test_a_mac_is_of_the_parts_not_of_their_joined_text(one: list[str], two: list[str]) -> None:
    same = wire.shell_mac(KEY, *one) == wire.shell_mac(KEY, *two)
    assert same == (json.dumps(one) == json.dumps(two))


@pytest.mark.parametrize(("status", "outcome"), [(0, (0, 0)), (3 << 8, (3, 0)), (9, (137, 9)), (139, (139, 11))])
def test_a_wait_status_becomes_code_and_signal(status: int, outcome: tuple[int, int]) -> None:
    assert exits.outcome_of(status) == outcome


@pytest.mark.parametrize(
    ("groups", "files", "kills"),
    [
        ("0::/\n", {"memory.events": "low 0\nmax 7\noom 2\noom_kill 2\noom_group_kill 1\n"}, 2),
        ("4:memory:/\n0::/\n", {"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"}, 3),
        ("4:memory:/docker/x\n", {"memory/memory.oom_control": "oom_kill 1\n"}, 1),
        ("0::/pods/a\n", {"pods/a/memory.events": "oom_kill 4\n", "pods/memory.events": "oom_kill 9\n"}, 4),
        (
            "4:cpu,memory:/pods/a\n0::/\n",
            {"memory/pods/a/memory.oom_control": "oom_kill 5\n", "memory/memory.oom_control": "oom_kill 9\n"},
            5,
        ),
        ("", {"memory.current": "4096\n"}, 0),
    ],
    ids=["v2", "v1", "v1, only its own mounted", "v2, the machine's view", "v1, the machine's view", "none"],
)
def test_kills_for_memory_are_counted_by_the_containers_own_cgroup(
    tmp_path: Path, groups: str, files: dict[str, str], kills: int
) -> None:
    own = tmp_path / "own"
    own.write_text(groups)
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert processes.oom_kills(str(tmp_path / "cgroup"), str(own)) == kills
