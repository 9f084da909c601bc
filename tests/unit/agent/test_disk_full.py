"""The agent's process on a machine where no file can be written and its log is not read."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from pathlib import Path

import pytest

from tests.support.waiting import until
from tests.unit.agent.answers import serving
from tests.unit.agent.test_writer import NODE, node_or_record, statuses

XID = "[    1.0] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python3, GPU has fallen off the bus.\n"


FULL = os.open("/dev/full", os.O_WRONLY)


def _no_file_grows() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


@pytest.mark.slow
async def test_a_full_disk_keeps_nothing_from_the_record(tmp_path: Path) -> None:
    settings = {"periodSeconds": 0.1, "checks": {"kernel-log": {"options": {"file": "kern.log"}, "periodSeconds": 0.1}}}
    (tmp_path / "agent.json").write_text(json.dumps(settings))
    (tmp_path / "kern.log").write_text(XID)
    refuses = True

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
        busy = b"HTTP/1.1 503 X\r\nContent-Length: 2\r\n\r\n{}"
        writer.write(busy if refuses else node_or_record(request))
        return True

    async with serving(answer) as server:
        cluster = {"name": "c", "cluster": {"server": server.url}}
        kubeconfig = {
            "clusters": [cluster],
            "contexts": [{"name": "c", "context": {"cluster": "c"}}],
            "current-context": "c",
        }
        (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
        command = [sys.executable, "-m", "muster.agent", f"--node={NODE}", f"--root={tmp_path}", "--listen=127.0.0.1:0"]
        command += [f"--settings={tmp_path / 'agent.json'}", f"--kubeconfig={tmp_path / 'kubeconfig'}"]
        command += [f"--{name}={tmp_path / name}" for name in ("sys", "proc", "dev")]
        environment = {**os.environ, "HOME": "/nonexistent", "TMPDIR": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
        agent = await asyncio.create_subprocess_exec(
            *command, stdout=FULL, stderr=FULL, env=environment, cwd="/", preexec_fn=_no_file_grows
        )
        try:
            await until("it was refused, and had to log that", lambda: len(server.requests) > 2)
            refuses = False
            await until("the fault is written", lambda: _has_reported(server.requests))
            agent.terminate()
            assert await agent.wait() == 0
        finally:
            if agent.returncode is None:
                agent.kill()
                await agent.wait()


def _has_reported(requests: list[bytes]) -> bool:
    return any(each["code"] == "79" for status in statuses(requests) for each in status.get("findings", ()))
