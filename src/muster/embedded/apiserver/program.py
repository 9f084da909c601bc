"""The process of one API server on a state folder: its arguments, its start and its end."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import os
import random
import ssl
import sys
import time
import traceback
from pathlib import Path

import uvloop

from muster.controlplane.ports import free_port
from muster.embedded.apiserver.access.auth import Authenticator
from muster.embedded.apiserver.access.state_dir import StateDir
from muster.embedded.apiserver.core import ApiCore
from muster.embedded.apiserver.proxy import KubeletProxy
from muster.embedded.apiserver.request_log import Recorder
from muster.embedded.apiserver.server import Server
from muster.embedded.apiserver.types.bootstrap import bootstrap
from muster.embedded.controllers.runner import NODE_MONITOR_GRACE_S, Controllers
from muster.embedded.journal import Journal, Locked
from muster.embedded.objects import encode
from muster.embedded.store import Store
from muster.kube.running import stop_on_signals

EXIT_CONFLICT = 5


class WallClock:
    """The time of day."""

    def now(self) -> float:
        """Return seconds since the epoch."""
        return time.time()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m muster.embedded.apiserver", description="One API server on a state folder."
    )
    parser.add_argument("--state-dir", type=Path, required=True, help="folder for objects, certificates and tokens")
    parser.add_argument("--address", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=int, default=0, help="port to listen on (default: the last one, else any free one)"
    )
    parser.add_argument("--name", default="embedded", help="cluster name; the context is muster-NAME")
    parser.add_argument("--record", type=Path, help="append a JSON line for each request to this file")
    parser.add_argument(
        "--node-monitor-grace-s",
        type=float,
        default=NODE_MONITOR_GRACE_S,
        help="seconds without a Lease renewal after which a node is unknown",
    )
    return parser.parse_args()


async def _run(arguments: argparse.Namespace) -> int:
    state = StateDir.open(arguments.state_dir, arguments.address)
    try:
        journal = Journal(arguments.state_dir / "store")
    except Locked as error:
        print(f"error: {error}; stop it first, or use another --state-dir", file=sys.stderr)
        return EXIT_CONFLICT
    store = Store(journal)
    core = ApiCore(store, WallClock(), random.SystemRandom(), state.signing_key)
    store.load()
    core.serve_stored_kinds()
    bootstrap(core, state.ca.read_text())
    recorder = Recorder(arguments.record) if arguments.record else None
    proxy = KubeletProxy(state.kubelet_token, _kubelet_tls(state))
    server = Server(core, Authenticator(state.admin_token, core.tokens), proxy, recorder)
    try:
        port = await _listen(server, arguments, state)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        journal.close()
        asked = f"port {arguments.port} on {arguments.address} is in use; choose another --port"
        print(f"error: {asked if arguments.port else error}", file=sys.stderr)
        return EXIT_CONFLICT
    url = f"https://{arguments.address}:{port}"
    kubeconfig = state.write_kubeconfig(arguments.name, url)
    stop = stop_on_signals()
    controllers = Controllers(core, arguments.node_monitor_grace_s)
    server.controllers_progress = lambda: controllers.last_progress
    tasks = [asyncio.create_task(journal.sync_forever()), asyncio.create_task(controllers.run())]
    ready = {"ready": True, "server": url, "port": port, "kubeconfig": str(kubeconfig), "pid": os.getpid()}
    print(encode(ready).decode(), flush=True)
    failed = asyncio.ensure_future(asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))
    await asyncio.wait([asyncio.ensure_future(stop.wait()), failed], return_when=asyncio.FIRST_COMPLETED)
    code = 0
    for task in tasks:
        if task.done() and task.exception() is not None:
            print(f"error: a part of the server failed: {task.exception()!r}", file=sys.stderr)
            traceback.print_exception(task.exception())
            code = 1
        task.cancel()
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await task
    await server.stop()
    await proxy.close()
    if recorder is not None:
        recorder.close()
    store.compact()
    journal.close()
    return code


async def _listen(server: Server, arguments: argparse.Namespace, state: StateDir) -> int:
    """Listen on the given port; else on the last one if it is free, so that clients find a restarted server.

    A new port is not one that the kernel gives to outgoing connections: these could take it during a restart.
    """
    if not arguments.port and state.last_port:
        with contextlib.suppress(OSError):
            return await server.start(arguments.address, state.last_port, state.certificate, state.key)
    port = arguments.port or free_port(address=arguments.address)
    await server.start(arguments.address, port, state.certificate, state.key)
    state.remember_port(port)
    return port


def _kubelet_tls(state: StateDir) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(state.ca))
    context.check_hostname = False
    return context


def main() -> int:
    """Run until SIGTERM or SIGINT. Returns the exit status."""
    return uvloop.run(_run(_arguments()))
