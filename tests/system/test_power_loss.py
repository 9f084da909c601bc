"""A machine that loses power sends no reset: the controller finds out by itself, in a network of the test's own."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.trainingjobs.test_link import REAL

ROOT = Path(__file__).parents[2]
HERE, THERE = "192.0.2.1", "192.0.2.2"  # RFC 5737: documentation, never routed
SERVER = f"""
import asyncio, json, pathlib, sys
from tests.unit.trainingjobs.test_link import AUTHORITY, Server
async def main():
    pathlib.Path(sys.argv[1]).write_bytes(AUTHORITY.certificate)
    server = Server(host="{HERE}")
    async with server.listening():
        print(json.dumps({{"port": server.port}}), flush=True)
        while True:
            await asyncio.sleep(0.05)
            member = server.member
            if member is not None:
                print(json.dumps({{"silent": member.silent_since is not None, "cut": member.cut}}), flush=True)
asyncio.run(main())
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def machines() -> Iterator[tuple[str, str]]:
    """Two network namespaces and a cable between them."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    tag = uuid.uuid4().hex[:6]
    one, two = f"mc-{tag}", f"ms-{tag}"
    try:
        ip("netns", "add", one)
        ip("netns", "add", two)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    try:
        ip("link", "add", "cable", "netns", one, "type", "veth", "peer", "name", "cable", "netns", two)
        for name, address in ((one, HERE), (two, THERE)):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
        yield one, two
    finally:
        ip("netns", "del", one)
        ip("netns", "del", two)


class Program:
    """A Python program in a network namespace that prints lines of JSON."""

    def __init__(self, machine: str, *words: str) -> None:
        self._process = subprocess.Popen(
            ["ip", "netns", "exec", machine, sys.executable, "-c", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.stdin, self._stdout = self._process.stdin, self._process.stdout

    def line(self, **wanted: object) -> dict[str, object]:
        """The next line that holds this."""
        deadline = time.monotonic() + 30
        while True:
            assert time.monotonic() < deadline, f"not within 30 s: {wanted}"
            if not select.select([self._stdout], [], [], 1.0)[0]:
                continue
            said: dict[str, object] = json.loads(self._stdout.readline() or b"{}")
            if wanted.items() <= said.items():
                return said

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self.stdin.close()
        self._stdout.close()


def test_a_machine_without_power_is_noticed_by_its_silence(machines: tuple[str, str], tmp_path: Path) -> None:
    ca, token = tmp_path / "ca", tmp_path / "token"
    token.write_text("t")
    server = Program(machines[0], SERVER, str(ca))
    try:
        port = server.line()["port"]
        supervisor = Program(machines[1], REAL, f"https://{HERE}:{port}", str(ca), str(token))
        try:
            body = {"state": "idle", "attempt": 1, "shellPort": 1, "address": THERE}
            supervisor.stdin.write(json.dumps(body).encode() + b"\n")
            supervisor.stdin.flush()
            server.line(silent=False)
            ip("-n", machines[1], "link", "set", "cable", "down")
            assert server.line(silent=True)["cut"]
        finally:
            supervisor.end()
    finally:
        server.end()
