"""Issue 15: clients see through the cache what they see from the API server: the same steps of each object."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from muster.controlplane.children import Child
from muster.controlplane.goprograms import NotBuiltError, find_built
from muster.controlplane.ports import free_port
from muster.controlplane.programs import ControlPlane
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from tests.support.controlplane import REQUIRED
from tests.support.musterprogram import MUSTER
from tests.support.recordedclients import (
    JSON,
    PROTOBUF,
    GoReflectors,
    PythonWatch,
    Recording,
    go_reflectors,
    kubectl_steps,
    kubectl_watch,
    our_informer,
)
from tests.support.waiting import until

READ = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}]
CACHE = [
    *READ,
    {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
    {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
]
NAMESPACES = ("red", "blue")


class Cache:
    """`muster readcache` as a process, on one address over restarts."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self._plane = plane
        self._folder = folder
        self.port = free_port()
        self.metrics_port = free_port()
        self._kubeconfig = plane.access.service_account_kubeconfig("cache", "cache", CACHE)
        self._child: Child | None = None

    def start(self) -> None:
        directory = self._plane.directory
        self._child = Child(
            [
                MUSTER,
                "readcache",
                f"--kubeconfig={self._kubeconfig}",
                f"--listen=127.0.0.1:{self.port}",
                f"--metrics-listen=127.0.0.1:{self.metrics_port}",
                f"--tls-cert={directory / 'apiserver.crt'}",
                f"--tls-key={directory / 'apiserver.key'}",
                "--no-client-certificates",
                "--kind=configmaps",
            ],
            self._folder / "readcache.log",
        )

    def stop(self, grace_s: float = 30.0) -> None:
        if self._child is not None:
            self._child.stop(grace_s)


@pytest.fixture(scope="module", autouse=True)
def reflectors() -> None:
    """The program is built before the first test, or the tests are skipped."""
    try:
        find_built("informers")
    except NotBuiltError as error:
        if REQUIRED:
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def plane(control_plane_binaries: Path) -> Iterator[ControlPlane]:
    """A control plane of this module: tests stop its API server, and compact its etcd."""
    arguments = {"kube-apiserver": ["--etcd-compaction-interval=10s"]}
    with ControlPlane(control_plane_binaries, controller_manager=False, extra_args=arguments) as started:
        for namespace in NAMESPACES:
            started.access.kubectl("create", "namespace", namespace)
        yield started


@pytest.fixture(scope="module")
def cache(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cache]:
    cache = Cache(plane, tmp_path_factory.mktemp("readcache"))
    cache.start()
    yield cache
    cache.stop()


@pytest.fixture(scope="module")
def direct(plane: ControlPlane) -> Path:
    """The kubeconfig of a reader that asks the API server."""
    return plane.access.service_account_kubeconfig("readers", "reader", READ)


@pytest.fixture(scope="module")
def cached(direct: Path, cache: Cache, plane: ControlPlane) -> Path:
    """The same reader through the cache."""
    config = json.loads(direct.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{cache.port}"
    path = direct.with_name("cached.kubeconfig")
    path.write_text(json.dumps(config))
    return path


class Writer:
    """Creates, changes, relabels, deletes and recreates ConfigMaps at random, and keeps what it did.

    Attributes:
        history: versions of each object in their order; "" stands for its removal.
    """

    def __init__(self, client: Client, seed: int) -> None:
        self._client = client
        self._rng = random.Random(seed)
        self.history: dict[str, list[str]] = {}
        self.present: dict[str, ConfigMap] = {}

    async def write(self, count: int) -> None:
        for _ in range(count):
            namespace, name = self._rng.choice(NAMESPACES), f"c{self._rng.randrange(12)}"
            key = f"{namespace}/{name}"
            history = self.history.setdefault(key, [])
            known = self.present.get(key)
            labels = {"color": self._rng.choice(["green", "grey"])}
            if known is None:
                made = ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace, labels=labels))
                self.present[key] = made = await self._client.create(made)
                history.append(made.metadata.resource_version)
            elif self._rng.random() < 0.25:
                del self.present[key]
                await self._client.delete(ConfigMap, name, namespace=namespace)
                history.append("")
            else:
                patch = {"metadata": {"labels": labels}, "data": {"n": str(self._rng.random())}}
                self.present[key] = made = await self._client.patch(ConfigMap, name, patch, namespace=namespace)
                history.append(made.metadata.resource_version)

    def versions(self) -> dict[str, str]:
        return {key: one.metadata.resource_version for key, one in self.present.items()}


def of_writer(recording: Recording) -> dict[str, str]:
    return {key: version for key, version in recording.current().items() if key.startswith(NAMESPACES) and "/c" in key}


def synced(*clients: GoReflectors) -> bool:
    return all(recording.states for client in clients for recording in client.recordings())


SHAPES = {
    "protobuf": {"content": PROTOBUF},
    "json": {"content": JSON},
    "labels": {"labels": "color=green", "content": PROTOBUF},
    "one-namespace": {"namespace": "red", "labels": "color!=green", "content": JSON},
    "one-object": {"fields": "metadata.name=c3", "content": PROTOBUF},
}


async def test_clients_of_all_kinds_see_the_same_steps_through_the_cache(
    plane: ControlPlane, direct: Path, cached: Path, tmp_path: Path
) -> None:
    sides = {"direct": direct, "cached": cached}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(load_config(plane.kubeconfig)))
        writer = Writer(client, seed=7)
        await writer.write(30)
        ours = [await stack.enter_async_context(our_informer(each)) for each in sides.values()]
        pairs = {
            name: [
                stack.enter_context(go_reflectors(each, tmp_path / f"{name}-{side}.log", **shape))
                for side, each in sides.items()
            ]
            for name, shape in SHAPES.items()
        }
        kubectl = plane.access.kubectl_path
        logs = [tmp_path / f"kubectl-{side}.log" for side in sides]
        for each, log in zip(sides.values(), logs, strict=True):
            stack.enter_context(kubectl_watch(kubectl, each, log))
        pythons = [PythonWatch(each) for each in sides.values()]
        await until("every reflector has a state", lambda: all(synced(*pair) for pair in pairs.values()))
        await until("both Python clients have a state", lambda: all(each.recording.states for each in pythons))
        await until(
            "both kubectl have a state", lambda: all(writer.present.keys() <= kubectl_steps(log).keys() for log in logs)
        )

        await writer.write(250)
        wanted = writer.versions()
        await client.create(ConfigMap(metadata=ObjectMeta(name="last", namespace="red", labels={"color": "green"})))

        def last(recording: Recording) -> bool:
            return "red/last" in recording.steps

        for name in ("protobuf", "json", "labels"):
            await until(
                f"{name} has caught up", lambda pair=pairs[name]: all(last(each.recordings()[0]) for each in pair)
            )
        for name, (at_server, at_cache) in pairs.items():
            await until(
                f"{name} saw the same on both sides",
                lambda one=at_server, other=at_cache: one.recordings()[0].changes() == other.recordings()[0].changes(),
            )
            recording = at_cache.recordings()[0]
            assert sum(map(len, recording.changes().values())) > 5, name
            assert recording.states == 1, name
        assert wanted.items() <= pairs["protobuf"][1].recordings()[0].current().items()
        await until("both kubectl have caught up", lambda: all("red/last" in kubectl_steps(log) for log in logs))
        await until("both kubectl have printed the same", lambda: kubectl_steps(logs[0]) == kubectl_steps(logs[1]))
        await until("the Python clients have caught up", lambda: all(last(each.recording) for each in pythons))
        for each in pythons:
            each.stop_at_next_event()
        await client.create(ConfigMap(metadata=ObjectMeta(name="end", namespace="red")))
        await until("the Python clients have ended", lambda: not any(each.running for each in pythons))
        assert pythons[0].recording.changes() == pythons[1].recording.changes()
        await until("our informers have caught up", lambda: all("red/end" in each.steps for each in ours))
        assert ours[0].changes() == ours[1].changes()


def follows(history: list[str], steps: list[tuple[str, str]]) -> str:
    """Why these steps are not a view of the history; "" if they are.

    From one whole state to the next, nothing may be missing, repeated or in another order. A removal has a version that
    the history does not have.
    """
    at: int | None = None
    for operation, version in steps:
        if operation == "state":
            if version == "":
                gone = [place for place, each in enumerate(history) if each == "" and (at is None or place >= at)]
                if not gone:
                    return f"a state without the object, which was not removed after {at}"
                at = gone[0] if at is None else max(at, gone[0])
                continue
            if version not in history:
                return f"a state with the unknown version {version}"
            place = history.index(version)
        elif operation == "delete":
            gone = [place for place, each in enumerate(history) if each == "" and place > (-1 if at is None else at)]
            if not gone:
                return f"removed at {version}, but not after {at}"
            place = gone[0]
        elif version not in history:
            return f"{operation} of the unknown version {version}"
        else:
            place = history.index(version)
        if at is not None and (place < at or (operation != "state" and place != at + 1)):
            return f"{operation} {version} (place {place}) after place {at}"
        at = place
    return ""


@pytest.mark.timeout(300)
async def test_clients_miss_nothing_while_both_sides_restart(
    plane: ControlPlane, cache: Cache, direct: Path, cached: Path, tmp_path: Path
) -> None:
    async with Client(load_config(plane.kubeconfig)) as client:
        for namespace in NAMESPACES:
            for existing in (await client.list(ConfigMap, namespace)).items:
                await client.delete(ConfigMap, existing.name, namespace=namespace)
        writer = Writer(client, seed=8)
        with (
            go_reflectors(cached, tmp_path / "protobuf.log", count=3) as protobuf,
            go_reflectors(cached, tmp_path / "json.log", content=JSON) as plain,
        ):
            await until("every reflector has a state", lambda: synced(protobuf, plain))
            await writer.write(60)
            cache.stop(grace_s=0)
            await writer.write(40)
            cache.start()
            await writer.write(60)
            plane.stop_apiserver()
            plane.start_apiserver()
            await client.close()  # its connections were cut
            await writer.write(60)
            cache.stop()
            await writer.write(20)
            cache.start()
            await writer.write(60)
            wanted = writer.versions()

            def caught_up() -> bool:
                recordings = [*protobuf.recordings(), *plain.recordings()]
                return all(of_writer(recording) == wanted for recording in recordings)

            await until("every reflector has the last state", caught_up, 120)
            for recording in (*protobuf.recordings(), *plain.recordings()):
                for key, history in writer.history.items():
                    assert follows(history, recording.steps.get(key, [])) == "", (
                        key,
                        history,
                        recording.steps.get(key),
                    )


def test_a_recording_with_a_gap_is_noticed() -> None:
    history = ["1", "2", "3", "", "5"]
    assert follows(history, [("state", "1"), ("update", "2"), ("update", "3"), ("delete", "4"), ("add", "5")]) == ""
    assert follows(history, [("state", "1"), ("state", "3"), ("state", ""), ("add", "5")]) == ""
    assert follows(history, [("state", "1"), ("update", "3")])
    assert follows(history, [("update", "2"), ("update", "2")])
    assert follows(history, [("state", "3"), ("add", "5")])
    assert follows(history, [("state", "3"), ("state", "2")])
