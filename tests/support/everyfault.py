"""Things that happen to the cluster of tests/support/everymetric.py, so that each of its metrics has a figure."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import http.server
import json
import random
import socket
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from muster.api.cache_ticket import Peer, PeerList
from muster.data.peers.shards import Shard
from muster.sdk.data.cache_client import CacheClient
from tests.support.accessreviews import until_user_may
from tests.support.bucketserver import bucket_server, etag_of
from tests.support.everyconfig import JOBS, SYSTEM, token
from tests.support.everymetric import EveryMetric
from tests.support.everyprocess import GUARD_TOKENS, SMALL_CACHE_BYTES
from tests.support.nodecache import access
from tests.support.peergang import RankShards, ticket_file
from tests.support.waiting import LONG_TIMEOUT_S, eventually


def everything_happens(scene: EveryMetric) -> None:
    """Jobs fail and continue, nodes break, requests are refused: all at once, as far as one does not need the other."""
    scene.jobs.train("steady", 2)
    scene.jobs.submit("large", 3, command=["true"])
    with read_cache_is_read(scene):
        scene.restart_api_server()
        scene.until("muster_api_retries_total")
        scene.until("muster_readcache_upstream_breaks_total")
    data_is_read(scene)
    scene.network.download(0)
    scene.network.attach("one")
    scene.until("muster_network_cni_request_seconds_count")
    admission_is_asked(scene)
    hub_is_called_by_a_stranger(scene)
    with pool_cannot_grow(scene):
        scene.jobs.kill_rank("steady")
        scene.processes.break_gpu()
        checkpoint_is_quarantined(scene, "steady")
        scene.until("muster_remediation_actions_total")
        scene.network.download(0)
        scene.network.attach("two")
        guard_is_asked(scene)
        job_is_edited(scene, "steady")
        remediation_is_paused(scene)
        for metric in ("muster_remediation_held_nodes", "muster_scaling_actions_total"):
            scene.until(metric)
    for metric in ("muster_scheduler_gpus", "muster_teams_nodes", "muster_scaling_nodes", "muster_balloons"):
        scene.until(f"{metric} and on (instance) (muster_leader == 1)")  # another one may lead since the restart


def job_is_edited(scene: EveryMetric, job: str) -> None:
    """A person edits the job while the controller writes its status, until a write conflicts."""
    edits = 0

    def conflicted() -> bool:
        nonlocal edits
        for _ in range(20):
            edits += 1
            scene.jobs.annotate(job, edit=str(edits))
        return bool(scene.query("muster_reconcile_errors_total"))

    eventually("a reconcile failed", conflicted, LONG_TIMEOUT_S)


def checkpoint_is_quarantined(scene: EveryMetric, job: str) -> None:
    """Ranks of the job die until one of them could not load a confirmed checkpoint."""

    def quarantined() -> bool:
        rank_dies(scene, job)
        return bool(_quarantined(scene, job))

    eventually("a checkpoint is in quarantine", quarantined, LONG_TIMEOUT_S)


def rank_dies(scene: EveryMetric, job: str) -> None:
    """A rank of the job dies. Until a checkpoint is in quarantine, no rank can load the newest one.

    The job may confirm a newer one before the rank dies: then its next attempt loads that one.
    """
    if not _quarantined(scene, job):
        _damage_newest_checkpoint(scene, job)
    scene.jobs.kill_rank(job)


def _quarantined(scene: EveryMetric, job: str) -> Sequence[object]:
    found: Sequence[object] = scene.jobs.status(job).get("quarantinedCheckpoints", ())
    return found


def _damage_newest_checkpoint(scene: EveryMetric, job: str) -> None:
    """No rank can load the newest confirmed checkpoint; an older one is left."""

    def confirmed() -> list[str]:
        paths = [each["path"] for each in scene.jobs.status(job).get("checkpoints", ())]
        return paths if len(paths) > 1 else []

    newest, *_ = eventually("checkpoints are confirmed", confirmed, LONG_TIMEOUT_S)
    path = Path(newest)
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file():
            file.write_text("damaged")


class _Cloud(http.server.BaseHTTPRequestHandler):
    """An Auto Scaling group without nodes that refuses to grow, in AWS' query protocol."""

    def do_POST(self) -> None:
        asked = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        action = asked["Action"][0]
        if action == "SetDesiredCapacity":
            self._answer(400, "<ErrorResponse><Error><Code>ScalingActivityInProgress</Code></Error></ErrorResponse>")
            return
        inner = ""
        if action == "DescribeAutoScalingGroups":
            zones = "<AvailabilityZones><member>us-east-1a</member></AvailabilityZones>"
            sizes = "<MinSize>0</MinSize><MaxSize>9</MaxSize><DesiredCapacity>0</DesiredCapacity>"
            name = "<AutoScalingGroupName>group</AutoScalingGroupName>"
            name += "<NewInstancesProtectedFromScaleIn>true</NewInstancesProtectedFromScaleIn>"
            inner = f"<AutoScalingGroups><member>{name}{sizes}{zones}<Instances/></member></AutoScalingGroups>"
        self._answer(200, f"<{action}Response><{action}Result>{inner}</{action}Result></{action}Response>")

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *arguments: object) -> None:
        """Write nothing."""


@contextlib.contextmanager
def pool_cannot_grow(scene: EveryMetric) -> Iterator[None]:
    """A pool needs a node, and the cloud refuses it."""
    template = {"labels": {"role": "cloud"}, "capacity": {"cpu": 8, "memory": "32Gi"}}
    cloud = {"name": "cloud", "provider": "external", "max": 2, "pollSeconds": 1, "template": template}
    options = {"region": "us-east-1"}
    aws = {**cloud, "name": "aws", "provider": "aws", "group": "group", "options": options, "min": 1}
    with http.server.ThreadingHTTPServer(("127.0.0.1", scene.processes.cloud_port), _Cloud) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        scene.configure("muster-scaling", {"pools": [cloud, aws]})
        try:
            yield
        finally:
            server.shutdown()


def remediation_is_paused(scene: EveryMetric) -> None:
    """A person holds all steps."""
    scene.configure("muster-health", {"mode": "act", "pause": True})


def admission_is_asked(scene: EveryMetric) -> None:
    """The webhook completes pods, as the API server asks it to; the embedded one calls no webhooks."""
    pod = {"metadata": {"name": "p", "namespace": JOBS}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    request = {"uid": "u", "kind": kind, "operation": "CREATE", "namespace": JOBS, "object": pod}
    body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()
    context = ssl._create_unverified_context()
    for _ in range(2):
        call = urllib.request.Request(
            f"https://{scene.processes.webhook}/mutate", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(call, timeout=30, context=context) as answer:
            assert json.load(answer)["response"]["allowed"]
        scene.until(f"muster_admission_duration_seconds_count > {_}")


def hub_is_called_by_a_stranger(scene: EveryMetric) -> None:
    """A client of the hub sends something else than an agent does."""
    context = ssl._create_unverified_context()
    with (
        socket.create_connection(("127.0.0.1", scene.processes.hub_port), timeout=30) as plain,
        context.wrap_socket(plain) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with contextlib.suppress(OSError):
            client.recv(1000)


@contextlib.contextmanager
def read_cache_is_read(scene: EveryMetric) -> Iterator[Callable[[str], int]]:
    """A client of the read cache lists and watches nodes for some time. Yields a call that returns a GET's status."""
    host, _, port = scene.processes.read_cache.rpartition(":")
    group = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": SYSTEM}
    role = {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"}
    binding = {"apiVersion": f"{group}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "readers"}}
    path = f"/apis/{group}/v1/clusterrolebindings"
    scene.api.create(path, {**binding, "subjects": [subject], "roleRef": role})
    # The read cache keeps a refusal.
    nodes = {"verb": "list", "resource": "nodes"}
    until_user_may(scene.api, f"system:serviceaccount:{SYSTEM}:default", nodes)
    headers = {"Authorization": "Bearer " + token(scene.api, "default")}

    with contextlib.ExitStack() as stack:

        @contextlib.contextmanager
        def opened(path: str) -> Iterator[http.client.HTTPResponse]:
            with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=30)) as connection:
                connection.request("GET", path, headers=headers)
                with connection.getresponse() as answer:
                    yield answer

        def status(path: str) -> int:
            with opened(path) as answer:
                answer.read()
                return answer.status

        for path in ("/api/v1/nodes", "/api/v1/nodes?resourceVersion=0", "/version"):
            assert status(path) == 200
        watch = stack.enter_context(opened("/api/v1/nodes?watch=true&allowWatchBookmarks=true"))
        assert watch.status == 200
        yield status


def guard_answers(scene: EveryMetric, path: str, token: str = GUARD_TOKENS["people"]) -> int:
    """The status of an answer of the guard."""
    call = urllib.request.Request(f"http://{scene.processes.guard}/api/v1/{path}")
    call.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(call, timeout=30) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def guard_is_asked(scene: EveryMetric) -> None:
    """Callers ask the guard: for little, for too much, twice at once, over a budget, and without a valid token."""

    def asked(query: str, token: str) -> int:
        return guard_answers(scene, f"query?query={urllib.parse.quote(query)}", token)

    people, tiny = GUARD_TOKENS["people"], GUARD_TOKENS["tiny"]
    assert asked("up", people) == 200
    scene.until("muster_guard_added_seconds_count")
    assert asked("up", people) == 200
    assert asked("up", "wrong") == 401
    assert asked('{__name__=~".+"}', people) >= 400
    eventually("a budget is used up", lambda: asked("up", tiny) == 429, LONG_TIMEOUT_S)
    often = "sum(rate(muster_progress_age_seconds[5m]))"

    def shared() -> bool:
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(lambda _: asked(often, people), range(24))) == {200}
        return bool(scene.query("muster_guard_shared_requests_total"))

    eventually("equal requests share an answer", shared, LONG_TIMEOUT_S)


def data_is_read(scene: EveryMetric) -> None:
    """Two nodes read objects of a bucket through their caches, and keep a shard of a checkpoint for each other."""
    tickets = _tickets(scene)
    objects_are_read(scene, [f"object-{number}" for number in range(12)])
    _keep_shards(scene, tickets)


def _tickets(scene: EveryMetric) -> list[str]:
    """Files with which ranks on both nodes join their caches."""
    group = tuple(Peer(slot, address) for slot, address in enumerate(scene.processes.cache_addresses))
    files = []
    for slot in range(len(group)):
        peers = PeerList(group=group, partner=group[(slot + 1) % len(group)])
        file = scene.folder / f"ticket-{slot}"
        file.write_text(json.dumps(ticket_file("uid", 2, slot, peers)))
        files.append(str(file))
    return files


def objects_are_read(scene: EveryMetric, keys: Sequence[str]) -> None:
    """Both nodes read these objects, at once."""
    tickets = _tickets(scene)
    with bucket_server() as bucket:
        bucket.rights = {"alice": ("data",)}
        about = access(scene.folder, bucket.address, "alice")
        for key in keys:
            bucket.objects[f"data/{key}"] = random.Random(key).randbytes(100_000)

        def read(slot: int) -> None:
            client = CacheClient(str(scene.folder / f"cache-{slot}" / "cache.sock"), tickets[slot])
            try:
                for key in keys:
                    data = bucket.objects[f"data/{key}"]
                    with client.open_object("s3://data", about, key, etag_of(data), len(data)) as file:
                        assert file.read() == data
            finally:
                client.close()

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(read, range(2)))


def _shard(data: bytes, step: int = 1) -> Shard:
    path = f"ckpt/uid/step-{step:08}-attempt-2"
    return Shard(
        sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data), uid="uid", key=f"{path}/rank-00000/model",
        checkpoint=path, step=step, attempt=2,
    )  # fmt: skip


def large_shard_is_kept(scene: EveryMetric, step: int) -> None:
    """The first node keeps a shard for which the other one, with the smaller disk, has no room."""
    data = random.Random(step).randbytes(SMALL_CACHE_BYTES)
    with RankShards(str(scene.folder / "cache-0" / "cache.sock"), _tickets(scene)[0]) as rank:
        assert rank.keep(_shard(data, step), data) == ""
        scene.until(f'muster_cache_shard_copies_total{{outcome="no-room"}} > {step - 2}')


def _keep_shards(scene: EveryMetric, tickets: list[str]) -> None:
    data = random.Random(1).randbytes(100_000)
    shard = _shard(data)
    alone = msgspec.structs.replace(shard, key=f"{shard.checkpoint}/rank-00001/model")
    with RankShards(str(scene.folder / "cache-0" / "cache.sock"), tickets[0]) as rank:
        assert rank.keep(shard, data) == ""
        assert rank.keep(alone, data, copy=False) == ""
    with RankShards(str(scene.folder / "cache-1" / "cache.sock"), tickets[1]) as rank:
        rank.kept(alone)
