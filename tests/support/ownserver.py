"""An API server of one test's or module's own, embedded or real, that may be stopped and started again."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from muster.controlplane.programs import ControlPlane
from tests.support.apiserver import ApiServer, EmbeddedServer


@dataclasses.dataclass(frozen=True)
class OwnServer(ApiServer):
    """An API server that may be stopped and started again with what it knew."""

    stop: Callable[[], object]
    start: Callable[[], object]


@contextlib.contextmanager
def embedded_server(folder: Path, *arguments: str) -> Iterator[OwnServer]:
    """The embedded API server, with its state in a folder."""
    server = EmbeddedServer(folder, *arguments)
    server.start()
    try:
        yield OwnServer("embedded", server.kubeconfig, server.kubelet_flags, server.kill, server.start)
    finally:
        if server.runs:
            server.kill()


@contextlib.contextmanager
def real_server(
    request: pytest.FixtureRequest, extra_args: Mapping[str, Sequence[str]] | None = None
) -> Iterator[OwnServer]:
    """A real control plane, with more arguments for its programs; the test is skipped where there is none."""
    with ControlPlane(request.getfixturevalue("control_plane_binaries"), extra_args=extra_args or {}) as plane:
        flags = (f"--client-ca-file={plane.ca_path}",)
        yield OwnServer("real", plane.kubeconfig, flags, plane.stop_apiserver, plane.start_apiserver)
