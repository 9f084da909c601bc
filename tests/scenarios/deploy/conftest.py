"""A real control plane with kube-scheduler, process kubelets as its nodes, and helm."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from muster.api.training_job import TrainingJob
from muster.api.training_job_status import TrainingJobStatus
from muster.controlplane.goprograms import NotBuiltError, find_built
from muster.controlplane.programs import ControlPlane
from muster.embedded.kubelet.sweep import sweep
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import ApiError
from muster.kube.objects.coordination import Lease
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from tests.support import waiting
from tests.support.auditlog import AuditLog
from tests.support.controlplane import REQUIRED, kubernetes_version
from tests.support.forkserver import fork_server
from tests.support.loopback import loopback_subnet
from tests.support.serviceproxy import ServiceProxy

CHART = Path(__file__).parents[3] / "deploy" / "chart" / "muster"
SYSTEM = "muster-system"
RELEASE = "muster"
ACCOUNT = f"system:serviceaccount:{SYSTEM}:muster-controller"
SELECTOR = "app.kubernetes.io/name=muster,app.kubernetes.io/component=controller"
SERVICE_PORT = 8443
DEADLINE_S = 120.0
GPUS = 4


class Helm:
    """Helm as a user runs it."""

    def __init__(self, program: Path, folder: Path, kubeconfig: Path | None = None) -> None:
        self._program, self._folder, self._kubeconfig = program, folder, kubeconfig

    def run(self, *arguments: str, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self._folder),
            "KUBECONFIG": str(self._kubeconfig or "/dev/null"),
        }
        return subprocess.run(
            [self._program, *arguments], capture_output=True, text=True, timeout=timeout_s, env=env, check=False
        )

    def ok(self, *arguments: str, timeout_s: float = 300.0) -> str:
        done = self.run(*arguments, timeout_s=timeout_s)
        assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def template(self, *arguments: str) -> str:
        return self.ok("template", RELEASE, str(CHART), "--namespace", SYSTEM, "--kube-version=1.36.0", *arguments)


@pytest.fixture(scope="session")
def helm_program() -> Path:
    try:
        return find_built("helm", build=False) / "helm"
    except NotBuiltError as error:
        if REQUIRED:
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def offline_helm(helm_program: Path, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm without a cluster: for rendering."""
    return Helm(helm_program, tmp_path_factory.mktemp("helm"))


async def until(what: str, check: Callable[[], Awaitable[Any]]) -> Any:
    """Wait for it. What the API server cannot answer is not true yet."""
    return await waiting.until(what, check, DEADLINE_S, ignoring=(ApiError,))


class ProcessNode:
    """A process kubelet. Its cluster id is its own, so that all of a node can be lost at once."""

    def __init__(self, cluster: Cluster, name: str, *, gpus: int, role: str) -> None:
        self.name = name
        self.cluster_id = f"test-{uuid.uuid4().hex[:12]}"
        subnet = loopback_subnet()
        self._copy = fork_server().start(
            cluster.folder / f"{name}.log",
            "muster.embedded.kubelet",
            f"--node={name}",
            f"--kubeconfig={cluster.plane.kubeconfig}",
            f"--state-dir={cluster.folder / 'nodes' / name}",
            f"--cluster-id={self.cluster_id}",
            f"--address={subnet}.1",
            f"--pod-cidr={subnet}.0/24",
            f"--gpus={gpus}",
            f"--labels=role={role}",
            f"--client-ca-file={cluster.plane.ca_path}",
            "--lease-period-s=2",
        )

    def lose(self) -> None:
        """As when the machine loses power: kubelet, supervisors and ranks are gone at once."""
        self._copy.kill()
        self._copy.wait(DEADLINE_S)
        sweep(self.cluster_id)


class Cluster:
    """A cluster of this machine."""

    def __init__(self, plane: ControlPlane, audit: AuditLog, helm_program: Path, folder: Path) -> None:
        self.plane, self.audit, self.folder = plane, audit, folder
        self.installed: list[tuple[int, int | None]] = []
        """Where the audit log stood when Muster was there, rights and all."""
        self.helm = Helm(helm_program, folder, plane.kubeconfig)
        self.nodes: dict[str, ProcessNode] = {}
        self.proxy = ServiceProxy(plane.kubeconfig, SYSTEM, SELECTOR, SERVICE_PORT)

    def start(self, workers: int) -> None:
        self.proxy.start()
        self.add_node("system-0", gpus=0, role="system")
        for number in range(workers):
            self.add_node(f"worker-{number}")

    def add_node(self, name: str, *, gpus: int = GPUS, role: str = "worker") -> ProcessNode:
        self.nodes[name] = ProcessNode(self, name, gpus=gpus, role=role)
        return self.nodes[name]

    def stop(self) -> None:
        for node in self.nodes.values():
            node.lose()
        self.proxy.stop()

    @property
    def values(self) -> list[str]:
        """What a cluster of processes needs: an address without DNS, and this machine's own user."""
        return [
            f"--set=advertiseUrl=https://127.0.0.1:{self.proxy.port}",
            "--set=nodeSelector.role=system",
            "--set=podSecurityContext=null",  # other users may not read this checkout's Python
        ]

    def install(self, *arguments: str) -> str:
        wait = ("--wait", "--timeout=180s")
        said = self.helm.ok(
            "install",
            RELEASE,
            str(CHART),
            f"--namespace={SYSTEM}",
            "--create-namespace",
            *wait,
            *self.values,
            *arguments,
        )
        self.installed.append((self.audit.position(), None))
        return said

    def upgrade(self, *arguments: str, chart: Path = CHART) -> str:
        wait = ("--wait", "--timeout=180s")
        return self.helm.ok("upgrade", RELEASE, str(chart), f"--namespace={SYSTEM}", *wait, *self.values, *arguments)

    def uninstall(self) -> str:
        self.installed[-1] = (self.installed[-1][0], self.audit.position())
        return self.helm.ok("uninstall", RELEASE, f"--namespace={SYSTEM}", "--wait", "--timeout=180s")

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        return self.plane.access.kubectl(*arguments, stdin=stdin)

    def get(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "--output=json"))

    def namespace(self, name: str, **labels: str) -> str:
        """Make a namespace that takes pods."""
        metadata = {"name": name, "labels": {key.replace("_", "-"): value for key, value in labels.items()}}
        self.plane.access.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        accounts = ("get", "serviceaccounts", f"--namespace={name}", "--output=name")
        waiting.eventually(f"{name} has a service account", lambda: "default" in self.kubectl(*accounts))
        return name


@contextmanager
def making_cluster(
    binaries: Path, helm_program: Path, folder: Path, *, workers: int, **arguments: list[str]
) -> Iterator[Cluster]:
    """`arguments` are more ones for the apiserver and the controller_manager."""
    (folder / "plane").mkdir()
    audit = AuditLog(folder)
    newest = kubernetes_version(binaries) >= (1, 36)
    plane = ControlPlane(
        binaries,
        directory=folder / "plane",
        scheduler=True,
        feature_gates={"GenericWorkload": True} if newest else {},
        runtime_config={"scheduling.k8s.io/v1alpha2": True} if newest else {},
        timeout_s=DEADLINE_S,
        extra_args={
            "kube-apiserver": [*audit.apiserver_arguments, *arguments.get("apiserver", ())],
            "kube-controller-manager": arguments.get("controller_manager", []),
        },
    )
    with plane:
        made = Cluster(plane, audit, helm_program, folder)
        try:
            made.start(workers)
            yield made
        finally:
            made.stop()


class Shared:
    """The cluster of the tests in this folder. It begins with the first test that needs it."""

    def __init__(self, make: Callable[[], AbstractContextManager[Cluster]]) -> None:
        self._make = make
        self._stack = ExitStack()
        self._cluster: Cluster | None = None

    def get(self) -> Cluster:
        if self._cluster is None:
            self._cluster = self._stack.enter_context(self._make())
        return self._cluster

    def end(self) -> None:
        self._cluster = None
        self._stack.close()


_SHARED = pytest.StashKey[Shared]()


@pytest.fixture(scope="session")
def shared(
    request: pytest.FixtureRequest,
    control_plane_binaries: Path,
    helm_program: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Shared]:
    monitor = ["--node-monitor-grace-period=8s", "--node-monitor-period=1s"]

    def make() -> AbstractContextManager[Cluster]:
        folder = tmp_path_factory.mktemp("deploy")
        return making_cluster(control_plane_binaries, helm_program, folder, workers=4, controller_manager=monitor)

    request.session.stash[_SHARED] = made = Shared(make)
    yield made
    made.end()


@pytest.fixture(scope="module")
def cluster(shared: Shared) -> Cluster:
    return shared.get()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """End the cluster after the tests of this folder: while others run, it would take 7% of a core."""
    yield
    shared = item.session.stash.get(_SHARED, None)
    if shared is not None and (nextitem is None or nextitem.path.parent != item.path.parent):
        shared.end()


class Jobs:
    """Training jobs in a namespace of one test."""

    def __init__(self, cluster: Cluster, client: Client, namespace: str, folder: Path) -> None:
        self.cluster, self.client, self.namespace, self.folder = cluster, client, namespace, folder

    async def nodes_ready(self, count: int) -> None:
        async def ready() -> bool:
            nodes = (await self.client.list(Node, label_selector="role=worker")).items
            return sum(node.ready for node in nodes) >= count

        await until(f"{count} worker nodes are ready", ready)

    async def submit(self, name: str, program: str, **spec: Any) -> None:
        """A job whose ranks run a Python program."""
        file = self.folder / f"{name}.py"
        file.write_text(textwrap.dedent(program))
        body = {
            "replicas": 2,
            "gpusPerNode": GPUS,
            "ranksPerNode": 1,
            "launcher": "none",
            "image": "none",
            "command": [sys.executable, str(file)],
            "stopGraceSeconds": 2,
            **spec,
        }
        metadata = {"name": name, "namespace": self.namespace}
        kind = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob"}
        await self.client.create({**kind, "metadata": metadata, "spec": body})

    async def train(self, name: str, nodes: int, **spec: Any) -> None:
        """A job that reports and saves checkpoints until its file `done` is there."""
        folder = self.folder / name
        folder.mkdir()
        await self.submit(
            name,
            TRAINING.format(folder=str(folder)),
            replicas=nodes,
            checkpoint={"path": str(folder / "checkpoints")},
            **spec,
        )

    def finish(self, name: str) -> None:
        (self.folder / name / "done").touch()

    def rank_pids(self, name: str, attempt: int) -> dict[str, str]:
        """Process ids by rank, as the ranks of an attempt wrote them."""
        files = (self.folder / name).glob(f"pid-{attempt}-*")
        return {file.name.rsplit("-", 1)[1]: file.read_text() for file in files}

    async def pids(self, name: str, attempt: int, nodes: int) -> dict[str, str]:
        async def all_there() -> dict[str, str]:
            found = self.rank_pids(name, attempt)
            return found if len(found) == nodes and all(found.values()) else {}

        found: dict[str, str] = await until(f"{nodes} ranks of attempt {attempt} of {name}", all_there)
        return found

    async def patch(self, name: str, spec: dict[str, Any]) -> None:
        await self.client.patch(TrainingJob, name, {"spec": spec}, namespace=self.namespace)

    async def status(self, name: str) -> TrainingJobStatus:
        return (await self.client.get(TrainingJob, name, self.namespace)).status

    async def pods(self, name: str) -> dict[str, Pod]:
        found = await self.client.list(Pod, self.namespace, label_selector=f"muster.dev/gang={name}")
        return {pod.uid: pod for pod in found.items}

    async def reaches(self, name: str, wanted: Callable[[TrainingJobStatus], Any]) -> TrainingJobStatus:
        newest = TrainingJobStatus()

        async def check() -> bool:
            nonlocal newest
            newest = await self.status(name)
            return bool(wanted(newest))

        try:
            await until("the status is as wanted", check)
        except AssertionError as error:
            # The status comes last: what is cut from a long report is rarely its end.
            raise AssertionError(f"{error}\n{await self.controller_logs()}\n{name}: {newest}") from None
        return newest

    async def phase(self, name: str, phase: str, attempt: int) -> TrainingJobStatus:
        return await self.reaches(name, lambda status: (status.phase, status.attempt) == (phase, attempt))

    async def leader(self) -> str:
        """The pod that leads."""

        async def holder() -> str:
            lease = await self.client.get(Lease, "muster-controller", SYSTEM)
            return (lease.spec.holder_identity or "").rsplit("-", 2)[0]

        found: str = await until("a controller leads", holder)
        return found

    async def controller_logs(self) -> str:
        """What the controllers said, as kubectl shows it."""
        arguments = ("logs", f"--namespace={SYSTEM}", f"--selector={SELECTOR}", "--tail=-1", "--prefix")
        return await asyncio.to_thread(self.cluster.kubectl, *arguments)


TRAINING = """
    import os, pathlib, time
    import muster
    folder = pathlib.Path({folder!r})
    last = muster.last_checkpoint()
    step = int(pathlib.Path(last.path).read_text()) if last else 0
    (folder / ("pid-%d-%d" % (muster.attempt(), muster.rank()))).write_text(str(os.getpid()))
    while not (folder / "done").exists():
        step += 1
        muster.report(step=step, total_steps=100000)
        if step % 10 == 0:
            muster.save_checkpoint(step, lambda path: pathlib.Path(path).write_text(str(step)))
        time.sleep(0.1)
"""


@pytest.fixture
async def jobs(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Jobs]:
    namespace = await asyncio.to_thread(cluster.namespace, f"t{uuid.uuid4().hex[:10]}")
    async with Client(load_config(cluster.plane.kubeconfig), user_agent="tests") as client:
        yield Jobs(cluster, client, namespace, tmp_path)
        await asyncio.to_thread(
            cluster.kubectl, "delete", "trainingjobs", "--all", f"--namespace={namespace}", "--ignore-not-found"
        )
