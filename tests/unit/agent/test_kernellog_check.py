"""The kernel log as the agent reads it: what came before, what was lost, what may not be read, and floods."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from pathlib import Path

import msgspec
import pytest

from muster.agent.aside import StillBusyError
from muster.agent.check import Host, Setup
from muster.agent.checks.kernellog import SAY_AGAIN_S, KernelLog, make
from muster.fleet.health.finding import Finding
from muster.fleet.health.kmsg import Kmsg
from muster.fleet.health.logfile import LogFile
from tests.support.kmsgdevice import PATH, Device, record
from tests.support.waiting import until

NOW_S = 1_790_000_000.0
UPTIME_S = 5000.0
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python3, GPU has fallen off the bus."


def on(device: Device) -> KernelLog:
    return KernelLog(Kmsg(PATH, device.operations()), booted=lambda: NOW_S - UPTIME_S)


def reported(findings: list[Finding]) -> list[tuple[str, str, str, int]]:
    return [(each.check, each.component, each.code, each.count) for each in findings]


async def look(check: KernelLog, now_s: float = NOW_S) -> list[Finding]:
    return list(await check.look(now_s))


async def test_faults_from_before_the_agent_started_are_seen_with_their_own_time() -> None:
    fault = f"4,7,{int(30e6)},-;{XID}\n".encode()
    found = await look(on(Device(record(6), fault)))
    assert reported(found) == [("xid", "0000:3b:00.0", "79", 1)]
    assert found[0].first_s == pytest.approx(NOW_S - UPTIME_S + 30)


async def test_overwritten_messages_are_one_growing_finding() -> None:
    device = Device(record(1), errno.EPIPE, record(101))
    check = on(device)
    assert ("kernel-log", "/dev/kmsg", "overrun", 99) in reported(await look(check))
    device.reads = [errno.EPIPE, record(202), record(203)]
    assert reported(await look(check, NOW_S + 1)) == [("kernel-log", "/dev/kmsg", "overrun", 199)]
    device.reads = [record(204), record(206)]
    assert reported(await look(check, NOW_S + 2)) == [("kernel-log", "/dev/kmsg", "overrun", 200)]


async def test_a_permission_that_is_missing_is_said_as_long_as_it_is_and_heals() -> None:
    device = Device(record(1, XID))
    device.refuses = errno.EPERM
    check = on(device)
    assert reported(await look(check)) == [("kernel-log", "/dev/kmsg", "permission", 1)]
    assert await look(check, NOW_S + 1) == []
    [again] = await look(check, NOW_S + SAY_AGAIN_S)
    assert (again.code, again.first_s, again.count) == ("permission", NOW_S, 2)
    device.refuses = 0
    assert [each.check for each in await look(check, NOW_S + SAY_AGAIN_S + 1)] == ["xid"]
    assert await look(check, NOW_S + 3 * SAY_AGAIN_S) == []


@pytest.mark.parametrize("step_s", [-1e7, 1e7])
async def test_a_permission_that_is_missing_is_said_though_the_clock_jumps(step_s: float) -> None:
    device = Device(record(1, XID))
    device.refuses = errno.EPERM
    check = on(device)
    await look(check)
    assert [each.code for each in await look(check, NOW_S + step_s)] == ["permission"]


@pytest.mark.parametrize(
    "time", ["[99999999999999.9] ", "[" + "9" * 400 + "] ", "9999-12-31T23:59:59-12:00 n kernel: ", "[90000000.0] "]
)
async def test_line_with_garbage_time_is_dated_now(tmp_path: Path, time: str) -> None:
    """A file that a crash left in pieces must not end the agent, nor a fault be new until the year 9999."""
    (tmp_path / "kern.log").write_text(f"{time}{XID}\n")
    check = KernelLog(LogFile(tmp_path / "kern.log"), booted=lambda: NOW_S - UPTIME_S)
    [found] = await look(check)
    assert (found.key, found.first_s, found.last_s) == (("xid", "0000:3b:00.0", "79"), NOW_S, NOW_S)


async def test_a_flood_is_one_incident_with_its_number_and_hides_no_other() -> None:
    flood = [f"4,{number},{number + 10},-;{XID}\n".encode() for number in range(50_000)]
    flood[40_000] = b"4,40000,40010,-;mlx5_core 0000:5e:00.0 eth1: Link down\n"
    device = Device(*flood)
    device.reads.reverse()
    device.read = lambda file, count: device.reads.pop() if device.reads else _again()  # type: ignore[method-assign,assignment,return-value]
    found = await look(on(device))
    assert sorted((each.check, each.count) for each in found) == [("nic", 1), ("xid", 49_999)]


def _again() -> bytes:
    raise BlockingIOError(errno.EAGAIN, "again")


async def test_a_look_that_came_too_late_loses_nothing() -> None:
    path_s = KernelLog(Kmsg(PATH, Device(record(1, XID)).operations()), booted=lambda: NOW_S - UPTIME_S)
    task = asyncio.create_task(path_s.look(NOW_S))
    await asyncio.sleep(0)  # its thread has started
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    found = await until("it is read", lambda: look(path_s, NOW_S + 1), ignoring=(StillBusyError,))
    assert [each.code for each in found] == ["79"]


@pytest.mark.slow
async def test_a_flood_without_an_end_is_read_in_parts() -> None:
    class Endless(Device):
        number = 0

        def read(self, file: int, count: int, /) -> bytes:
            self.number += 1
            return f"4,{self.number},{self.number + 10},-;{XID}\n".encode()

    check = KernelLog(Kmsg(PATH, Endless().operations()), timeout_s=0.2, booted=lambda: NOW_S - UPTIME_S)
    first, second = await look(check), await look(check, NOW_S + 1)
    assert first[0].first_s == second[0].first_s
    assert second[0].count > first[0].count
    assert check._scanner.lines == second[0].count


async def test_a_file_is_followed_through_rotation(tmp_path: Path) -> None:
    log = tmp_path / "var/log/kern.log"
    log.parent.mkdir(parents=True)
    line = f"Nov 22 01:00:{{:02d}} node-1 kernel: [ 12.5] {XID}\n"
    log.write_text(line.format(1))
    setup = Setup(
        node="node-1", host=Host(root=tmp_path), options=msgspec.Raw(json.dumps({"file": "/var/log/kern.log"}).encode())
    )
    check = make(setup)
    assert [each.count for each in await look(check)] == [1]
    with log.open("a") as file:
        file.write(line.format(2))
    os.rename(log, log.with_name("kern.log.1"))
    log.write_text(line.format(3))
    [grown] = await look(check, NOW_S + 1)
    assert grown.count == 3
    log.unlink()
    check.close()
    assert [each.code for each in await look(check, NOW_S + 2)] == ["missing"]


def test_settings_that_are_wrong_say_which() -> None:
    with pytest.raises(ValueError, match="file"):
        make(Setup(node="n", options=msgspec.Raw(b'{"file": 7}')))
    assert make(Setup(node="n", period_s=3.0, options=msgspec.Raw(b'{"later": 1}'))).period_s == 3.0
