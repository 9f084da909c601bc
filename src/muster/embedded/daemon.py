"""The daemon of an embedded cluster: starts its programs, restarts crashed ones, and ends them.

`python -m muster.embedded.daemon --state-dir DIR` runs the cluster whose shape DIR holds. It may be killed at any time:
its programs die with it, and the next daemon finds everything in DIR.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from muster.embedded import control, programs, realplane
from muster.embedded.caches import NodeCaches
from muster.embedded.kubelet.sweep import sweep
from muster.embedded.layout import ClusterSpec, Layout, ProcessId
from muster.embedded.programlogs import keep_bounded
from muster.embedded.ranks import kill_rank, running_ranks
from muster.embedded.readiness import NotReadyError, answers, healthy, install_kinds, poll, ready_nodes
from muster.embedded.realplane import RealPlane
from muster.embedded.supervision import Supervised, clock
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.connection.privatefile import write_private
from muster.kube.running import stop_on_signals

START_S = 120.0
GRACE_S = 5.0
_TICK_S = 0.1
_FIRST_CRASHES = 3


class Daemon:
    """A running embedded cluster."""

    def __init__(self, layout: Layout, spec: ClusterSpec) -> None:
        """Create the daemon; `run` starts the programs."""
        self.layout = layout
        self.spec = spec
        self.stage = "starting"
        self.ready = False
        self.stopping = asyncio.Event()
        self._env = programs.environment(spec)
        self._programs: dict[str, Supervised] = {}

    async def run(self) -> int:
        """Run until a stop is requested. Returns the exit status."""
        stop_on_signals(self.stopping)
        async with control.serve(self.layout.control_socket, self.answer):
            watching = asyncio.create_task(self._watch())
            bounding = asyncio.create_task(keep_bounded(self.layout.logs))
            starting = asyncio.create_task(self._start())
            stopped = asyncio.create_task(self.stopping.wait())
            tasks: list[asyncio.Task[Any]] = [watching, bounding, starting, stopped]
            try:
                await asyncio.wait({starting, stopped, watching}, return_when=asyncio.FIRST_COMPLETED)
                if not stopped.done():
                    starting.result()
                    tasks.append(asyncio.create_task(self._keep_caches()))
                    await asyncio.wait({stopped, watching}, return_when=asyncio.FIRST_COMPLETED)
                    if watching.done():
                        watching.result()
            except NotReadyError as error:
                print(f"cannot start: {error}", file=sys.stderr, flush=True)
                return 1
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.to_thread(self._end)
        return 0

    async def _start(self) -> None:
        """Start all programs in order, each one when the programs that it needs are ready."""
        spec = self.spec
        plane = await self._start_real() if spec.real else None
        if plane is None:
            self.stage = "starting the API server"
            self._add(programs.apiserver(self.layout, spec))
            await self._poll("the API server", self._config_written)
        async with Client(load_config(self.layout.kubeconfig), user_agent="muster-daemon") as client:
            await self._poll("the API server", lambda: answers(client))
            self.stage = "installing Muster's kinds"
            await install_kinds(client)
            self.stage = "starting the controller and the nodes"
            if plane is None:
                self._add(programs.controller(spec, self.layout.kubeconfig))
                for number in range(spec.nodes):
                    self._add(programs.embedded_kubelet(self.layout, spec, number))
            else:
                await self._add_accounts(plane)
            await self._poll("the nodes", lambda: self._nodes_ready(client))
            self.stage = "waiting for the controller"
            await self._poll("the controller", lambda: healthy(spec.health_port))
        self.stage = "ready"
        self.ready = True

    async def _start_real(self) -> RealPlane:
        """Start etcd, kube-apiserver and kube-controller-manager, each one when the previous one is ready."""
        try:
            plane = await asyncio.to_thread(RealPlane, self.layout, self.spec)
            wanted = plane.programs()
        except realplane.FAILED as error:
            raise NotReadyError(str(error)) from None
        for program in wanted:
            self.stage = f"starting {program.name}"
            self._add(program)
            await self._poll(program.name, lambda name=program.name: asyncio.to_thread(plane.is_ready, name))
        await asyncio.to_thread(plane.write_kubeconfig)
        return plane

    async def _add_accounts(self, plane: RealPlane) -> None:
        """Start the controller and the nodes of a real control plane, each as a service account."""
        spec = self.spec
        try:
            controller = await asyncio.to_thread(plane.controller_kubeconfig)
            nodes = await asyncio.to_thread(plane.node_kubeconfig)
        except realplane.FAILED as error:
            raise NotReadyError(str(error)) from None
        self._add(programs.controller(spec, controller))
        for number, name in enumerate(spec.node_names()):
            sockets = self.layout.cache(name).sockets
            trust = plane.kubelet_trust
            self._add(programs.kubelet(spec, number, nodes, self.layout.node(name), trust, sockets=sockets))

    async def _keep_caches(self) -> None:
        """Start the data caches of nodes on request."""
        async with Client(load_config(self.layout.kubeconfig), user_agent="muster-daemon") as client:
            await NodeCaches(self.layout, self.spec, self._add).run(client)

    async def _config_written(self) -> bool:
        return await asyncio.to_thread(self.layout.kubeconfig.exists)

    async def _nodes_ready(self, client: Client) -> bool:
        ready = await ready_nodes(client) & set(self.spec.node_names())
        self.stage = f"waiting for nodes: {len(ready)} of {self.spec.nodes} ready"
        return len(ready) == self.spec.nodes

    async def _poll(self, what: str, check: Any) -> None:
        async def checked() -> bool:
            for supervised in self._programs.values():
                if supervised.restarts >= _FIRST_CRASHES:
                    tail = await asyncio.to_thread(supervised.log_tail)
                    raise NotReadyError(f"{supervised.program.name} does not start:\n{tail}")
            return bool(await check())

        await poll(what, checked, START_S)

    def _add(self, program: programs.Program) -> None:
        self._programs[program.name] = Supervised(program, self.layout.log(program.name), self._env, clock)

    async def _watch(self) -> None:
        """Restart programs that ended."""
        while True:
            changed = [each.program.name for each in self._programs.values() if each.tick()]
            if changed:
                running = {name: each.process for name, each in self._programs.items() if each.process}
                self.layout.children_file.write_bytes(msgspec.json.encode(running))
            await asyncio.sleep(_TICK_S)

    def _end(self) -> None:
        """End all programs, nodes first, and remaining processes."""
        self.stage = "stopping"
        ordered = list(reversed(self._programs.values()))
        for supervised in ordered[:-1]:  # the API server ends last
            supervised.terminate()
        for supervised in ordered:
            supervised.stop(GRACE_S)
        sweep(self.spec.cluster_id)

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer one request on the control socket."""
        match request.get("op"):
            case "status":
                described = {name: each.describe() for name, each in self._programs.items()}
                return {"stage": self.stage, "ready": self.ready, "programs": described}
            case "stop":
                self.stopping.set()
                return {}
            case "vanish":
                return await asyncio.to_thread(self._vanish, self._node(request))
            case "return":
                node = self._node(request)
                vanished = not node.wanted
                if vanished:
                    for each in self._of_node(node):
                        each.start()
                return {"vanished": vanished}
            case "kill-rank":
                rank = await asyncio.to_thread(kill_rank, str(request.get("podUID", "")), request.get("rank"))
                if rank is None:
                    running = await asyncio.to_thread(running_ranks, str(request.get("podUID", "")))
                    raise control.ControlError(_no_rank(request.get("rank"), running))
                return {"rank": rank}
            case other:
                raise control.ControlError(f"unknown request {other!r}")

    def _node(self, request: dict[str, Any]) -> Supervised:
        name = str(request.get("node", ""))
        if name not in self.spec.node_names() or name not in self._programs:
            raise control.ControlError(f"no node '{name}'; there are {', '.join(self.spec.node_names())}")
        return self._programs[name]

    def _of_node(self, node: Supervised) -> list[Supervised]:
        """Return the programs of a node: its kubelet, and its data cache if it has one."""
        cache = self._programs.get(programs.cache_name(node.program.name))
        return [node] if cache is None else [node, cache]

    def _vanish(self, node: Supervised) -> dict[str, Any]:
        """Make a node fail as in a power cut: kill its kubelet, its data cache and every process of its pods."""
        for each in self._of_node(node):
            each.stop(grace_s=0)
        return {"killed": sweep(self.spec.cluster_id, node.program.name)}


def _no_rank(asked: int | None, running: list[int]) -> str:
    if not running:
        return "no rank runs in that pod now"
    return f"rank {asked} does not run in that pod; there are {', '.join(map(str, running))}"


@contextmanager
def _only_one(layout: Layout) -> Iterator[bool]:
    """Hold the folder's lock; False if another daemon holds it."""
    with layout.lock_file.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def main() -> int:
    """Run the daemon of one cluster."""
    parser = argparse.ArgumentParser(prog="python -m muster.embedded.daemon", description=__doc__)
    parser.add_argument("--state-dir", type=Path, required=True, help="the cluster's folder")
    layout = Layout(parser.parse_args().state_dir)
    spec = layout.read_spec()
    if spec is None:
        print(f"{layout.spec_file} is missing or unreadable", file=sys.stderr)
        return 2
    with _only_one(layout) as alone:
        if not alone:
            print(f"another daemon runs {layout.root}", file=sys.stderr)
            return 5
        sweep(spec.cluster_id)
        write_private(layout.daemon_file, msgspec.json.encode(ProcessId.of(os.getpid())))
        try:
            return asyncio.run(Daemon(layout, spec).run())
        finally:
            layout.daemon_file.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
