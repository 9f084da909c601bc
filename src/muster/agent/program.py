"""The agent's process: its arguments, its loops, and its end."""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import logging
import os
import random
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import msgspec

import muster
from muster.agent.api import AgentApi
from muster.agent.cachedapi import CachedApi
from muster.agent.check import Host
from muster.agent.checks import CHECKS
from muster.agent.metrics import samples
from muster.agent.pace import Pace
from muster.agent.page import serve
from muster.agent.privilege import drop_privileges
from muster.agent.registry import make_checks
from muster.agent.runner import Runner, ended
from muster.agent.settings import AgentSettings, SettingsError, load_settings
from muster.agent.writer import Writer
from muster.kube.connection.config import ClusterConfig, load_config
from muster.kube.connection.fallback import Fallback
from muster.kube.connection.readcacheconfig import read_cache_config
from muster.kube.errors import ConfigError
from muster.kube.progress import Progress
from muster.kube.running import log_to_stderr, stop_on_signals

log = logging.getLogger(__name__)

_COLLECT_FROM: Final = 50_000
"""Garbage collection threshold: the agent creates few cycles, so a higher one saves more than it costs."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of the process."""

    node: str
    kubeconfig: Path | None
    settings: Path | None
    host: Host
    listen: tuple[str, int] | None
    user: int | None
    read_cache: str = ""
    read_cache_ca: Path | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM. Returns the exit status: 0, or 2 if the arguments or settings are wrong."""
    options = _parse(arguments)
    log_to_stderr()
    try:
        if options.user is not None:
            drop_privileges(options.user)
        settings = load_settings(options.settings)
        config = load_config(options.kubeconfig)
        asyncio.run(run(options, settings, config))
    except (SettingsError, ConfigError, OSError) as error:
        print(f"muster agent: {error}", file=sys.stderr)
        return 2
    return 0


async def run(options: Options, settings: AgentSettings, config: ClusterConfig) -> None:
    """Run checks and write findings until the process is asked to end."""
    loop = asyncio.get_running_loop()
    stop = stop_on_signals()
    progress = Progress()
    api = _api(options, config)
    checks, troubles = make_checks(options.node, settings, options.host, CHECKS)
    pace = Pace(
        options.node,
        period_s=settings.period_seconds,
        heartbeat_s=settings.heartbeat_seconds,
        now_s=loop.time(),
    )
    writer = Writer(api, options.node, pace, options.host, (muster.__version__, settings.policy_version), progress)
    runner = Runner(options.node, checks, writer.take, progress)
    log.info("node %s, checks: %s", options.node, ", ".join(check.name for check in checks) or "none")
    async with AsyncExitStack() as stack:
        stack.callback(api.close)
        if options.listen is not None:
            port = await stack.enter_async_context(
                serve(progress, lambda: dict(samples(runner, writer)), *options.listen)
            )
            log.info("metrics on http://%s:%d/metrics", options.listen[0], port)
        for trouble in troubles:
            runner.say(*trouble)
        gc.set_threshold(_COLLECT_FROM)
        tasks = [asyncio.create_task(runner.run()), asyncio.create_task(writer.run())]
        stopped = asyncio.create_task(_set(stop))
        try:
            awaited = [*(tasks if checks else tasks[1:]), stopped]
            done, _ = await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (*tasks, stopped):
                await ended(task)
    log.info("ends")


def _api(options: Options, config: ClusterConfig) -> AgentApi | CachedApi:
    again = functools.partial(load_config, options.kubeconfig)
    user_agent = f"muster-agent/{muster.__version__}"
    server = AgentApi(config, user_agent=user_agent, again=again)
    if not options.read_cache:
        return server

    def cache_config() -> ClusterConfig:
        return read_cache_config(again(), options.read_cache, options.read_cache_ca)

    cache = AgentApi(cache_config(), user_agent=user_agent, again=cache_config)
    return CachedApi(cache, server, Fallback(options.read_cache, random.Random()))


async def _set(stop: asyncio.Event) -> None:
    await stop.wait()


def _parse(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="python -m muster.agent", description="Check the node on which it runs.")
    parser.add_argument("--node", default=os.environ.get("NODE_NAME", ""), help="its name (default: NODE_NAME)")
    parser.add_argument("--kubeconfig", type=Path, help="the cluster (default: as kubectl, else the pod's account)")
    parser.add_argument("--settings", type=Path, metavar="FILE", help="agent.json")
    parser.add_argument("--root", type=Path, default=Path("/"), help="the node's root file system, for logs and disks")
    for name in ("sys", "proc", "dev"):
        parser.add_argument(f"--{name}", type=Path, help=f"the node's /{name} (default: ROOT/{name})")
    parser.add_argument("--listen", type=_address, metavar="HOST:PORT", help="serve /healthz and /metrics")
    parser.add_argument("--user", type=int, metavar="UID", help="run as this user, with CAP_SYSLOG as only capability")
    parser.add_argument("--read-cache", metavar="URL", default="", help="send requests through this read cache")
    parser.add_argument(
        "--read-cache-ca", type=Path, metavar="FILE", help="its authorities, PEM (default: those of the cluster)"
    )
    given = parser.parse_args(arguments)
    if given.read_cache_ca and not given.read_cache:
        parser.error("--read-cache-ca needs --read-cache")
    if not given.node:
        parser.error("the node is not known; set --node or NODE_NAME to its name")
    host = Host(
        root=given.root,
        sys=given.sys or given.root / "sys",
        proc=given.proc or given.root / "proc",
        dev=given.dev or given.root / "dev",
    )
    return Options(
        node=given.node,
        kubeconfig=given.kubeconfig,
        settings=given.settings,
        host=host,
        listen=given.listen,
        user=given.user,
        read_cache=given.read_cache,
        read_cache_ca=given.read_cache_ca,
    )


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)
