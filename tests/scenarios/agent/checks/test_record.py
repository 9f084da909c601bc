"""The agent's process with its passive checks, on both API servers: from a fault to what the policy says."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from muster.agent.checks import CHECKS
from muster.fleet.health.decide import Decision, History, decide
from muster.fleet.health.policytext import default_policy
from muster.fleet.health.record import finding_of
from tests.scenarios.agent.conftest import Agent, Agents, Machine
from tests.support.anyserver import BY_AGENT
from tests.support.nvml import STATE, build_nvml, plug_gpu, tell_nvml
from tests.support.waiting import until

pytestmark = pytest.mark.slow

NAMES = ("disk", "gpu", "maintenance", "nic")
ROOT = "30 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 {all},errors=remount-ro\n"
GPUS = 8


class Faults:
    """Breaks what a node's files, its driver and its cloud say."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self._root = machine.folder
        self._state = folder / "nvml"
        self._lines: dict[str, object] = {"count": GPUS} | {f"{gpu}.ecc.1.2": 0 for gpu in range(GPUS)}
        self.events: list[dict[str, Any]] = []
        for gpu in range(GPUS):
            plug_gpu(self._root / "sys", gpu)
        self.nvml({})
        self.port("link_downed", 0)
        self.mounted("rw")

    def nvml(self, lines: dict[str, object]) -> None:
        self._lines |= lines
        tell_nvml(self._state, self._lines)

    def port(self, counter: str, value: int) -> None:
        file = self._root / f"sys/class/infiniband/mlx5_0/ports/1/counters/{counter}"
        file.parent.mkdir(parents=True, exist_ok=True)
        self._put(file, f"{value}\n")

    def mounted(self, options: str) -> None:
        file = self._root / "proc/1/mountinfo"
        file.parent.mkdir(exist_ok=True)
        self._put(file, ROOT.format(all=options))

    def _put(self, file: Path, text: str) -> None:
        """Change a file at once: the agent looks ten times a second, and never finds half of what a kernel says."""
        part = self._root / "part"
        part.write_text(text)
        part.replace(file)

    async def metadata(self, request: web.Request) -> web.Response:
        if request.headers.get("Metadata") != "true":
            return web.Response(status=400)
        return web.json_response({"DocumentIncarnation": len(self.events), "Events": self.events})


Broken = tuple[Agent, Faults]


@pytest.fixture
async def faults(agents: Agents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broken]:
    """An agent that has looked at everything once, and a way to break it."""
    monkeypatch.setenv(STATE, str(tmp_path / "nvml"))
    machine = await agents.machine()
    faults = Faults(machine, tmp_path)
    app = web.Application()
    app.router.add_get("/metadata/scheduledevents", faults.metadata)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    options: dict[str, dict[str, object]] = {
        "disk": {"places": []},
        "gpu": {"libraries": [str(build_nvml(tmp_path))]},
        "maintenance": {
            "cloud": "azure", "machine": "train_1", "address": f"http://127.0.0.1:{runner.addresses[0][1]}",
        },
        "nic": {},
    }  # fmt: skip
    for name in NAMES:
        machine.settings.setdefault("checks", {"kernel-log": {"options": {"file": "var/log/kern.log"}}})
        machine.settings["checks"][name] = {"periodSeconds": 0.1, "options": options[name]}
    try:
        agent = await agents.start(machine, ",".join(f"{name}={CHECKS[name]}" for name in NAMES))
        for name in NAMES:
            looks = f'muster_agent_looks_total{{check="{name}",outcome="ok"}}'
            await until(f"{name} looks", lambda looks=looks: agent.metric(looks) >= 2)  # type: ignore[misc]
        yield agent, faults
    finally:
        await runner.cleanup()


async def decision(agents: Agents, node: str) -> Decision:
    findings = [finding_of(each) for each in (await agents.health(node)).findings]
    return decide(findings, History(), default_policy(), time.time())


async def test_faults_become_findings_of_the_record_and_the_policy_knows_each(agents: Agents, faults: Broken) -> None:
    agent, broken = faults
    node = agent.machine.node
    assert [each for each in (await agents.health(node)).findings if each.check in ("ecc", "port")] == []

    broken.port("link_downed", 2)
    await agents.until_found(node, "port", "link_downed", count=2)
    assert (await decision(agents, node)).action == "quarantine"

    broken.nvml({"3.ecc.1.2": 1})
    health = await agents.until_found(node, "ecc", "uncorrected-dram")
    assert {each.component for each in health.findings if each.check == "ecc"} == {"0000:04:00.0"}
    assert (await decision(agents, node)).rule == "ecc/uncorrected-dram"

    broken.mounted("ro")
    await agents.until_found(node, "filesystem", "read-only")
    assert (await decision(agents, node)).rule == "filesystem/read-only"

    broken.nvml({"5.rows.corrected": 1, "5.rows.failed": 1})
    await agents.until_found(node, "rows", "failed")
    assert (await decision(agents, node)).rule == "rows/failed"

    event = {"EventId": "e-1", "EventType": "Redeploy", "Resources": ["train_1"], "EventStatus": "Scheduled"}
    broken.events.append(event)
    await agents.until_found(node, "maintenance", "redeploy")

    last = await decision(agents, node)
    assert (last.action, last.unknown) == ("replace", ())
    assert {reason.rule for reason in last.reasons} == {
        "port/link_downed", "ecc/uncorrected-dram", "filesystem/read-only", "rows/failed", "maintenance/redeploy",
    }  # fmt: skip


@BY_AGENT
async def test_a_state_that_lasts_is_written_once(agents: Agents, faults: Broken) -> None:
    agent, broken = faults
    broken.mounted("ro")
    health = await agents.until_found(agent.machine.node, "filesystem", "read-only")
    looks = 'muster_agent_looks_total{check="disk",outcome="ok"}'
    before = agent.metric(looks)
    await until("many looks", lambda: agent.metric(looks) > before + 20)
    again = await agents.health(agent.machine.node)
    assert again.findings == health.findings


@BY_AGENT
async def test_a_driver_that_goes_away_is_said_and_stops_no_other_check(agents: Agents, faults: Broken) -> None:
    agent, broken = faults
    broken.nvml({"init": 18})
    await agents.until_found(agent.machine.node, "gpu", "driver-mismatch")
    broken.port("link_downed", 1)
    await agents.until_found(agent.machine.node, "port", "link_downed")
    assert agent.page("/healthz") == "ok\n"
