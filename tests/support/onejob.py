"""An API server of one training job with one pod, as far as the command line asks it: a test answers the requests."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

JOB = "/apis/muster.dev/v1alpha1/namespaces/default/trainingjobs/train"
PODS = "/api/v1/namespaces/default/pods"
DEADLINE_S = 60
META = {"namespace": "default", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
_KIND = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob"}


def job(**status: Any) -> dict[str, Any]:
    """The job `train`, with this status."""
    spec = {"replicas": 1, "launcher": "none", "image": "i", "command": ["true"]}
    return {**_KIND, "metadata": {"name": "train", "uid": "job", **META}, "spec": spec, "status": status}


def pod(attempt: int, phase: str, state: dict[str, Any]) -> dict[str, Any]:
    """Its pod, made for this attempt; `state` is its container's."""
    meta = {
        "name": f"train-0-{attempt}",
        "uid": "pod",
        "labels": {"muster.dev/gang": "train", "muster.dev/slot": "0"},
        "annotations": {"muster.dev/attempt": str(attempt)},
        "ownerReferences": [{**_KIND, "name": "train", "uid": "job"}],
        **META,
    }
    worker = {"name": "worker", "state": state}
    return {"metadata": meta, "spec": {}, "status": {"phase": phase, "containerStatuses": [worker]}}


def pods(*items: dict[str, Any]) -> dict[str, Any]:
    """A list of pods."""
    return {"metadata": {"resourceVersion": "1"}, "items": list(items)}


def write_kubeconfig(folder: Path, server: str) -> Path:
    """A kubeconfig of that server without credentials."""
    path = folder / "config"
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "current-context": "c",
    }
    path.write_text(yaml.safe_dump(config))
    return path


@contextmanager
def served(answer: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Iterator[str]:
    """Answer requests in a thread of its own; yields the server's URL."""
    loop, listener = asyncio.new_event_loop(), socket.create_server(("127.0.0.1", 0))
    ready, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app, shutdown_timeout=1, handler_cancellation=True)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(DEADLINE_S)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(DEADLINE_S)
        loop.close()
