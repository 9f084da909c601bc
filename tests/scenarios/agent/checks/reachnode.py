"""One node of a mesh, run within its network namespace: listens, and looks once for each line it is given."""

from __future__ import annotations

import asyncio
import json
import sys

import msgspec

from muster.agent.check import Setup
from muster.agent.checks import reach


async def run(node: str, members_file: str, port: int) -> None:
    reach._CONNECT_S = 1.5  # type: ignore[misc]  # a network of one machine answers at once or not at all
    options = msgspec.Raw(json.dumps({"membersFile": members_file, "port": port}).encode())
    check = reach.make(Setup(node=node, options=options))
    assert check is not None
    async with await asyncio.start_server(lambda reader, writer: writer.close(), "0.0.0.0", port):
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            found = await check.look(float(line))
            print(json.dumps([[each.component, each.code] for each in found]), flush=True)


asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))
