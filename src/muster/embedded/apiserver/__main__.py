"""`python -m muster.embedded.apiserver`: one API server on a state folder."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import os
import random
import signal
import ssl
import sys
import time
import traceback
from pathlib import Path

import uvloop

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

EXIT_CONFLICT = 5


class WallClock:
    """The time of day."""

    def now(self) -> float:
        """Return seconds since the epoch."""
        return time.time()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m muster.embedded.apiserver", description=__doc__)
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
        print(f"error: port {arguments.port} on {arguments.address} is in use; choose another --port", file=sys.stderr)
        return EXIT_CONFLICT
    url = f"https://{arguments.address}:{port}"
    kubeconfig = state.write_kubeconfig(arguments.name, url)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
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
    """Listen on the given port; else on the last one if it is free, so that clients find a restarted server."""
    if not arguments.port and state.last_port:
        with contextlib.suppress(OSError):
            return await server.start(arguments.address, state.last_port, state.certificate, state.key)
    port = await server.start(arguments.address, arguments.port, state.certificate, state.key)
    state.remember_port(port)
    return port


def _kubelet_tls(state: StateDir) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(state.ca))
    context.check_hostname = False
    return context


def main() -> None:
    """Run until SIGTERM or SIGINT."""
    sys.exit(uvloop.run(_run(_arguments())))


if __name__ == "__main__":
    main()
