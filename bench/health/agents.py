"""Many node agents in one process: each has a kernel log of its own, and does all that the agent's process does.

    python -m bench.health.agents KUBECONFIG FOLDER NODE...

The kernel log of a node is the file FOLDER/NODE/kern.log. A node's agent has a connection and threads of its own, as on
a machine of its own; only the interpreter is shared.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import msgspec

from muster.agent.api import AgentApi
from muster.agent.check import Host
from muster.agent.checks import CHECKS
from muster.agent.pace import Pace
from muster.agent.registry import make_checks
from muster.agent.runner import Runner
from muster.agent.settings import AgentSettings, CheckSettings
from muster.agent.writer import Writer
from muster.kube.connection.config import load_config
from muster.kube.progress import Progress

LOG = "kern.log"
_ONE = "kernel-log"


async def agent(node: str, folder: Path, kubeconfig: Path) -> None:
    """Watch over one node for ever."""
    root = folder / node
    settings = AgentSettings(checks={_ONE: CheckSettings(options=msgspec.Raw(b'{"file":"kern.log"}'))})
    host = Host(root=root, sys=root / "sys", proc=root / "proc", dev=root / "dev")
    checks, troubles = make_checks(node, settings, host, {_ONE: CHECKS[_ONE]})
    assert not troubles, troubles
    progress = Progress()
    api = AgentApi(load_config(kubeconfig), user_agent="muster-agent/bench")
    now_s = asyncio.get_running_loop().time()
    pace = Pace(node, period_s=settings.period_seconds, heartbeat_s=settings.heartbeat_seconds, now_s=now_s)
    writer = Writer(api, node, pace, host, ("bench", ""), progress)
    runner = Runner(node, checks, writer.take, progress)
    async with asyncio.TaskGroup() as group:
        group.create_task(runner.run())
        group.create_task(writer.run())


async def run(kubeconfig: Path, folder: Path, nodes: list[str]) -> None:
    gc.freeze()
    async with asyncio.TaskGroup() as group:
        for node in nodes:
            group.create_task(agent(node, folder, kubeconfig))


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
