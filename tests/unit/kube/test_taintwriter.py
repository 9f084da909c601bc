"""Writers of taints on an API server without sockets: what others wrote is never lost, whatever comes between."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry

from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.errors import Conflict
from muster.kube.metrics import kube_metrics
from muster.kube.objects.node import Node, Taint
from muster.kube.objects.struct import from_dict, to_dict
from muster.kube.objects.taints import NodeChange
from muster.kube.taintwriter import Outcome, TaintWriter
from muster.sim.virtual.network import Calm, Fate, InProcessTransport, Trace
from tests.support.apicore import Cluster, events
from tests.support.racing import EFFECT, FOREIGN, ROUNDS, WRITERS, always, check_end, differing, race

NODES = "/api/v1/nodes"
OURS = Taint(key="muster.dev/team", value="vision", effect=EFFECT)
OWNED = [(OURS.key, EFFECT)]
PUT = NodeChange(put=(OURS,), labels={OURS.key: "vision"})


class Wire:
    """An API server with one node, and clients of it."""

    def __init__(self, seed: int = 0) -> None:
        self.cluster = Cluster()
        self.trace = Trace()
        self.fates = Calm(random.Random(seed))
        body = {"metadata": {"name": "n1", "labels": {"zone": "a"}}, "spec": {"taints": [to_dict(FOREIGN)]}}
        self.cluster.ok("POST", NODES, body)
        self.asked: list[tuple[str, int]] = []
        self.trace.listeners.append(lambda now, client, request, code, body: self.asked.append((request.method, code)))

    def client(self) -> Client:
        transport = InProcessTransport(self.cluster.core, "writer", self.fates, self.trace)
        metrics = kube_metrics(CollectorRegistry())
        return Client(ClusterConfig(server="http://none"), transport=transport, metrics=metrics)

    def writer(self) -> TaintWriter:
        return TaintWriter(self.client(), OWNED, field_manager="muster-teams", rng=random.Random(1))

    def node(self) -> Node:
        return from_dict(self.cluster.ok("GET", f"{NODES}/n1"), Node)

    def taints(self) -> list[Taint]:
        """All but the one that the API server itself puts on new nodes."""
        return [taint for taint in self.node().spec.taints if taint.key != "node.kubernetes.io/not-ready"]

    def taint_by_hand(self, key: str) -> None:
        """Another user adds a taint."""
        taints = [to_dict(taint) for taint in self.node().spec.taints] + [{"key": key, "effect": EFFECT}]
        content = {"content_type": "application/merge-patch+json"}
        self.cluster.ok("PATCH", f"{NODES}/n1", {"spec": {"taints": taints}}, **content)


@pytest.mark.parametrize("seed", range(5))
async def test_six_writers_that_race_never_lose_a_taint_of_another(seed: int) -> None:
    wire = Wire(seed)
    watch = wire.cluster.watch(f"{NODES}?resourceVersion={wire.node().metadata.resource_version}")
    versions = [wire.node()]
    await race(wire.client, "n1")
    versions += [from_dict(event["object"], Node) for event in await events(watch)]
    check_end(wire.node())
    for before, after in itertools.pairwise(versions):
        assert len(differing(before, after)) == 1, "a write changed what belongs to another user"
    assert len(versions) == 1 + WRITERS * ROUNDS
    assert ("PATCH", 409) in wire.asked, "no write raced"


async def test_stale_cache_causes_a_second_try_and_keeps_foreign_taints() -> None:
    wire = Wire()
    cached = wire.node()
    wire.taint_by_hand("example.com/later")
    written = await wire.writer().write("n1", always(PUT), known=cached)
    assert written.outcome is Outcome.WRITTEN
    assert written.node == wire.node()
    assert [taint.key for taint in wire.taints()] == [FOREIGN.key, "example.com/later", OURS.key]
    assert wire.node().metadata.labels == {"zone": "a", OURS.key: "vision"}


async def test_a_current_cache_needs_one_request_and_a_node_as_wanted_none() -> None:
    wire = Wire()
    cached = wire.node()
    await wire.writer().write("n1", always(PUT), known=cached)
    assert wire.asked == [("PATCH", 200)]
    again = await wire.writer().write("n1", always(PUT), known=wire.node())
    assert again.outcome is Outcome.UNCHANGED
    assert len(wire.asked) == 1


async def test_a_node_that_changed_meanwhile_is_asked_about_again() -> None:
    wire = Wire()
    cached = wire.node()
    wire.taint_by_hand("example.com/stop")

    def unless_stopped(node: Node) -> NodeChange | None:
        return None if any(taint.key == "example.com/stop" for taint in node.spec.taints) else PUT

    written = await wire.writer().write("n1", unless_stopped, known=cached)
    assert written.outcome is Outcome.DECLINED
    assert OURS.key not in wire.node().metadata.labels


async def test_another_node_of_the_same_name_is_not_written_for_the_old_one() -> None:
    wire = Wire()
    cached = wire.node()
    wire.cluster.ok("DELETE", f"{NODES}/n1")
    assert (await wire.writer().write("n1", always(PUT), known=cached)).outcome is Outcome.GONE
    wire.cluster.ok("POST", NODES, {"metadata": {"name": "n1"}})
    same = await wire.writer().write("n1", lambda node: PUT if node.uid == cached.uid else None, known=cached)
    assert same.outcome is Outcome.DECLINED


async def test_lost_answer_causes_no_second_change() -> None:
    wire = Wire()

    class Broken(Calm):
        sent = 0

        def request(self, method: str, path: str) -> Fate:
            self.sent += method == "PATCH"
            return Fate(broken=method == "PATCH" and self.sent == 1)

    wire.fates = Broken(random.Random(0))
    written = await wire.writer().write("n1", always(PUT))
    assert written.outcome is Outcome.UNCHANGED
    assert [taint.key for taint in wire.taints()] == [FOREIGN.key, OURS.key]


async def test_dropped_taints_go_and_times_of_others_stay() -> None:
    wire = Wire()
    added = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    theirs = Taint(key="node.kubernetes.io/unreachable", effect="NoExecute", time_added=added)
    taints = [to_dict(theirs), to_dict(OURS), to_dict(FOREIGN)]
    content = {"content_type": "application/merge-patch+json"}
    wire.cluster.ok("PATCH", f"{NODES}/n1", {"spec": {"taints": taints}}, **content)
    drop = NodeChange(drop=((OURS.key, EFFECT),))
    await wire.writer().write("n1", always(drop))
    assert wire.taints() == [theirs, FOREIGN]


async def test_a_writer_may_not_touch_what_it_does_not_own() -> None:
    wire = Wire()
    for change in (NodeChange(put=(FOREIGN,)), NodeChange(drop=((FOREIGN.key, FOREIGN.effect),))):
        with pytest.raises(ValueError, match=r"does not own taint example\.com/foreign:NoSchedule"):
            await wire.writer().write("n1", always(change))


@pytest.mark.slow
async def test_writer_that_always_loses_the_race_raises_conflict() -> None:
    wire = Wire()

    def always_late(node: Node) -> NodeChange:
        wire.taint_by_hand(f"example.com/{len(node.spec.taints)}")
        return PUT

    with pytest.raises(Conflict):
        await wire.writer().write("n1", always_late)
