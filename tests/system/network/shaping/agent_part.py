"""Runs the part `shaping` in this process: FOLDER PODS GROUPS [remove]. Prints its page once it knows the demand."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from muster.kube.privilege import drop_privileges
from muster.kube.progress import Progress
from muster.network.agent.part import HostPaths, PartSetup
from muster.network.agent.parts import capabilities
from muster.network.config import parse_config
from muster.network.localpods.pod import LocalPod
from muster.network.shaping.part import make_part


class Pods:
    """The pods of the arguments."""

    revision = 1

    def __init__(self, pods: dict[str, Any]) -> None:
        self._groups = {uid: (group,) if group else () for uid, (_, group) in pods.items()}
        self.pods = {
            uid: LocalPod(
                namespace="d", name=uid, uid=uid, addresses=tuple(addresses), host_network=bool(group), phase="Running"
            )
            for uid, (addresses, group) in pods.items()
        }

    async def changed(self, revision: int) -> int:
        raise NotImplementedError

    def cgroups(self, pod: LocalPod) -> tuple[str, ...]:
        return self._groups[pod.uid]

    def host_interface(self, pod: LocalPod) -> str:
        return ""


def private_bpf_names(folder: Path) -> None:
    """Mount a bpf file system for this process only, which its next run finds again through a file descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)
    private, none = ctypes.c_ulong(0x4000 | 0x40000), ctypes.c_ulong(0)
    assert libc.unshare(0x00020000) == 0
    assert libc.mount(b"none", b"/", None, private, None) == 0
    assert libc.mount(b"bpf", os.fsencode(folder), b"bpf", none, None) == 0


async def run(part: Any, pages: dict[str, Callable[[], bytes]]) -> None:
    working = asyncio.create_task(part.run())
    for _ in range(600):
        await asyncio.sleep(0.1)
        if working.done():
            working.result()
        shown = json.loads(pages["shaping"]()) if pages else {}
        if shown.get("subjects") and any(each["demand"] is not None for each in shown["subjects"].values()):
            print(json.dumps(shown), flush=True)
            break
    await working


def main() -> None:
    folder, pods, groups = Path(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3])
    private_bpf_names(folder / "bpf")
    config = parse_config((folder / "network.yaml").read_text())
    drop_privileges(capabilities(config))
    pages: dict[str, Callable[[], bytes]] = {}
    setup = PartSetup(
        node="n",
        node_uid=lambda: "",
        paths=HostPaths(run=folder / "run", cgroup=groups),
        pods=Pods(pods),
        client=None,  # type: ignore[arg-type]
        namespace="muster",
        progress=Progress(),
        registry=CollectorRegistry(),
        config=config,
        publish=pages.__setitem__,
    )
    part = make_part(setup, config.shaping)
    if len(sys.argv) > 4:
        part.remove()
    else:
        asyncio.run(run(part, pages))


if __name__ == "__main__":
    main()
