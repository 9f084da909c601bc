"""The daemon's socket when requests, handlers and the operating system fail."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from muster.network.cni.answers import Answer
from muster.network.cni.invocation import Invocation, parse_document
from muster.network.cni.server import CniServer
from tests.support.waiting import TIMEOUT_S, eventually

_MORE_THAN_THREADS = 20


@contextmanager
def serving(path: Path, handle: Callable[[Invocation], Answer]) -> Iterator[CniServer]:
    server = CniServer(path, handle)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def request(command: str) -> bytes:
    """A request without a configuration and without files."""
    return command.encode() + b"\0" * 7


def ask(path: Path, command: str = "STATUS") -> bytes:
    with socket.socket(socket.AF_UNIX) as dialing:
        dialing.settimeout(TIMEOUT_S)
        dialing.connect(str(path))
        dialing.sendall(request(command))
        dialing.shutdown(socket.SHUT_WR)
        return dialing.recv(1000)


def test_request_has_the_texts_of_the_shim_and_the_rest_is_the_configuration() -> None:
    texts = (b"ADD", b"id", b"/run/netns/a", b"eth0", b"K8S_POD_NAME=\xff", b"netns,netlink", b"2", b'{"a":"\0\xff"}\0')
    document = parse_document(b"\0".join(texts))
    assert (document.command, document.container_id, document.netns, document.ifname) == (
        "ADD",
        "id",
        "/run/netns/a",
        "eth0",
    )
    assert document.args == "K8S_POD_NAME=\ufffd"
    assert document.files == ("netns", "netlink")
    assert document.files_error == os.strerror(2)
    assert document.config == '{"a":"\0\ufffd"}\0'


@pytest.mark.parametrize("body", [b"", b"ADD", b"ADD" + b"\0" * 6, b"ADD" + b"\0" * 6 + b"x\0{}"])
def test_request_that_was_cut_off_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"cut off|invalid literal"):
        parse_document(body)


def test_handler_that_fails_does_not_end_the_thread_that_serves_later_requests(tmp_path: Path) -> None:
    def handle(invocation: Invocation) -> Answer:
        if invocation.document.command == "ADD":
            raise RecursionError
        return Answer(0, "ok")

    with serving(tmp_path / "cni.sock", handle):
        assert [ask(tmp_path / "cni.sock", "ADD") for _ in range(_MORE_THAN_THREADS)] == [b""] * _MORE_THAN_THREADS
        assert ask(tmp_path / "cni.sock") == b"ok\0000"


def test_daemon_that_ran_out_of_descriptors_serves_again_once_there_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = 0

    def refusing(listening: socket.socket, *args: Any) -> Any:
        nonlocal failed
        failed += 1
        raise OSError(24, "Too many open files")

    with serving(tmp_path / "cni.sock", lambda invocation: Answer(0, "ok")):
        with monkeypatch.context() as patch:
            patch.setattr(socket.socket, "accept", refusing)
            for _ in range(_MORE_THAN_THREADS):
                with socket.socket(socket.AF_UNIX) as dialing:  # ends the accept in which each thread waits
                    dialing.connect(str(tmp_path / "cni.sock"))
            eventually("each thread was refused", lambda: failed >= _MORE_THAN_THREADS)
        assert ask(tmp_path / "cni.sock") == b"ok\0000"


def test_removed_socket_is_put_back_and_a_stopped_daemon_puts_none_back(tmp_path: Path) -> None:
    path = tmp_path / "run" / "cni.sock"
    with serving(path, lambda invocation: Answer(0, "ok")) as server:
        inode = path.stat().st_ino
        server.restore()
        assert path.stat().st_ino == inode
        path.unlink()
        path.parent.rmdir()
        server.restore()
        assert ask(path) == b"ok\0000"
    server.restore()
    assert not path.exists()


def test_request_is_abandoned_once_its_peer_closed_and_not_when_it_only_waits(tmp_path: Path) -> None:
    seen: list[bool] = []
    closed, looked = threading.Event(), threading.Event()

    def handle(invocation: Invocation) -> Answer:
        seen.append(invocation.is_abandoned())
        looked.set()
        assert closed.wait(TIMEOUT_S)
        seen.append(invocation.is_abandoned())
        return Answer(0, "ok")

    with serving(tmp_path / "cni.sock", handle), socket.socket(socket.AF_UNIX) as dialing:
        dialing.connect(str(tmp_path / "cni.sock"))
        dialing.sendall(request("ADD"))
        dialing.shutdown(socket.SHUT_WR)
        assert looked.wait(TIMEOUT_S)
        dialing.close()
        closed.set()
    assert seen == [False, True]
