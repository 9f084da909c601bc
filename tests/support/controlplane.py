"""The real control plane for tests, and a plain word at the end of every run about whether there was one.

Where it comes from: MUSTER_TEST_KUBECONFIG (a cluster of yours), else KUBEBUILDER_ASSETS, else what `make controlplane`
builds. Without any, tests that need it are skipped with the reason; with MUSTER_REQUIRE_REAL=1 they fail. `.ci/nightly`
sets KUBEBUILDER_ASSETS to the oldest Kubernetes that Muster claims to run on. Tests of what that one lacks are marked
`kubernetes_since`.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NoReturn, Protocol

import pytest

from muster.controlplane.clusteraccess import ClusterAccess
from muster.controlplane.programs import ControlPlane, ControlPlaneUnavailableError, find_binaries

REQUIRED = os.environ.get("MUSTER_REQUIRE_REAL") == "1"
USER_KUBECONFIG = os.environ.get("MUSTER_TEST_KUBECONFIG", "")
_FIXTURES = {"real_control_plane", "start_control_plane", "control_plane_binaries"}


@dataclasses.dataclass
class Found:
    """What the search for a control plane came to, once a session."""

    binaries: Path | None = None
    reason: str = "no test that was selected needs it"
    used: str = ""


_FOUND = pytest.StashKey[Found]()


@dataclasses.dataclass(frozen=True)
class RealCluster:
    """A real API server. `control_plane` is None where it is a user's cluster, which no test may stop."""

    access: ClusterAccess
    control_plane: ControlPlane | None

    @property
    def kubeconfig(self) -> Path:
        return self.access.kubeconfig


class StartControlPlane(Protocol):
    def __call__(self, **settings: object) -> ControlPlane: ...


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FOUND] = Found()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.real)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Look before the first test: a build takes minutes, more than a test may."""
    needed = any(item.get_closest_marker("real") for item in session.items)
    if not needed or session.config.option.collectonly:
        return
    found = session.config.stash[_FOUND]
    capture = session.config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            found.binaries = find_binaries(build=not USER_KUBECONFIG)
        found.reason = "every test that needs it was skipped before asking for it"
    except ControlPlaneUnavailableError as error:
        found.reason = str(error)


def kubernetes_version(binaries: Path) -> tuple[int, int]:
    """Major and minor version of the control plane."""
    program = str(binaries / "kube-apiserver")
    said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    major, minor = said.rpartition(" v")[2].split(".")[:2]
    return int(major), int(minor)


def pytest_runtest_setup(item: pytest.Item) -> None:
    marker, binaries = item.get_closest_marker("kubernetes_since"), item.config.stash[_FOUND].binaries
    if marker is None or binaries is None or not item.get_closest_marker("real"):
        return
    wanted = tuple(map(int, marker.args[0].split(".")))
    if kubernetes_version(binaries) < wanted:
        pytest.skip(f"Kubernetes older than {marker.args[0]} answers otherwise: docs/compatibility.md")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Of several processes (pytest-xdist) each has a control plane of its own; the first one prints it."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        found = session.config.stash[_FOUND]
        output["real_control_plane"] = (found.used, found.reason)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    used, reason = getattr(node, "workeroutput", {}).get("real_control_plane", ("", "its process died"))
    found = node.config.stash[_FOUND]
    found.used, found.reason = found.used or used, reason


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None, None, None]:
    yield  # everybody else's lines first
    found = config.stash[_FOUND]
    said = f"used, {found.used}" if found.used else f"NOT used: {found.reason}"
    terminalreporter.write_line(f"real control plane: {said}")


def _give_up(reason: str) -> NoReturn:
    if REQUIRED:
        pytest.fail(f"MUSTER_REQUIRE_REAL=1 and there is no real control plane: {reason}", pytrace=False)
    pytest.skip(f"no real control plane: {reason}")


@pytest.fixture(scope="session")
def real_control_plane(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[RealCluster]:
    """One real cluster for the whole session, with kube-controller-manager and without kube-scheduler or nodes."""
    found = pytestconfig.stash[_FOUND]
    if USER_KUBECONFIG:
        kubectl = shutil.which("kubectl") or (found.binaries and found.binaries / "kubectl")
        if not kubectl:
            _give_up("MUSTER_TEST_KUBECONFIG is set but there is no kubectl on PATH")
        access = ClusterAccess(Path(USER_KUBECONFIG), tmp_path_factory.mktemp("cluster"), Path(kubectl))
        found.used = "the cluster of MUSTER_TEST_KUBECONFIG"
        yield RealCluster(access, None)
        return
    with ControlPlane(request.getfixturevalue("control_plane_binaries")) as control_plane:
        yield RealCluster(control_plane.access, control_plane)


@pytest.fixture(scope="session")
def control_plane_binaries(pytestconfig: pytest.Config) -> Path:
    """The folder that holds kube-apiserver, etcd and kubectl."""
    found = pytestconfig.stash[_FOUND]
    if found.binaries is None:
        _give_up(found.reason)
    version = subprocess.run(
        [found.binaries / "kube-apiserver", "--version"], capture_output=True, text=True, timeout=30, check=True
    )
    source = "KUBEBUILDER_ASSETS" if os.environ.get("KUBEBUILDER_ASSETS") else "make controlplane"
    found.used = f"{version.stdout.strip()} from {source}"
    return found.binaries


@pytest.fixture
def start_control_plane(control_plane_binaries: Path) -> Iterator[StartControlPlane]:
    """Start control planes of one test's own, to stop and restart or to run with other settings."""
    stops: list[Callable[[], None]] = []

    def start(**settings: object) -> ControlPlane:
        control_plane = ControlPlane(control_plane_binaries, **settings)  # type: ignore[arg-type]
        stops.append(control_plane.stop)
        control_plane.__enter__()
        return control_plane

    try:
        yield start
    finally:
        for stop in reversed(stops):
            stop()
