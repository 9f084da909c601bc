"""Stopping a server of the test's own process, with all its connections."""

from __future__ import annotations

import psutil
from aiohttp import web

from tests.support.waiting import until


async def stopped(runner: web.AppRunner) -> None:
    """Stop a server, and wait until this process has no socket with its port.

    With TLS, a connection ends some turns of the loop after its server: the client answers first. A connection that
    is open when the loop closes is a ResourceWarning.
    """
    ports = {address[1] for address in runner.addresses}
    await runner.cleanup()
    await until(f"the connections of the ports {ports} are closed", lambda: not ports & _local_ports())


def _local_ports() -> set[int]:
    return {each.laddr.port for each in psutil.Process().net_connections("tcp")}
