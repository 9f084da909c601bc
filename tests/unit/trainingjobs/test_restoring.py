"""Issue 14: all nodes restore the same checkpoint. A damaged one is quarantined and never used again."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from muster.api.training_job_status import CheckpointSource, QuarantinedCheckpoint
from muster.kube.objects.pod import Pod
from muster.trainingjobs.attempts import restoring
from muster.trainingjobs.attempts.checkpoints import known
from muster.trainingjobs.attempts.restoring import NotThisCheckpoint, Verdict
from muster.trainingjobs.metrics import TrainingJobMetrics
from muster.trainingjobs.plan import RecordEvent, WriteStatus
from muster.trainingjobs.rendezvous.agreement import Agreement
from muster.trainingjobs.rendezvous.members import Members
from muster.trainingjobs.rendezvous.server import RestoreRequest, Stale
from muster.trainingjobs.snapshot import RestoreFailure, Restoring
from tests.unit.trainingjobs.test_checkpoints import handed, restarted, saved
from tests.unit.trainingjobs.world import World

DAMAGED = RestoreFailure(1, "n1", "Checksum", "rank 9: shard 3 differs")


def begun(*steps: int) -> World:
    """A job in attempt 2, which starts from the newest of these checkpoints."""
    world = saved(*steps)
    world.disk = {f"/{step}" for step in steps}
    restarted(world)
    return world


def tell(world: World, path: str, nodes: int = 0, failure: RestoreFailure | None = None) -> None:
    world.restoring = Restoring(world.status.attempt, path, nodes, failure)
    world.control()


def lose_a_node(world: World) -> None:
    node = world.holder(1).spec.node_name
    world.kill_node(node)
    world.node_ready(node, False)


def events(world: World, reason: str) -> list[str]:
    return [each.message for each in world.actions(RecordEvent) if each.reason == reason]


def verdict(world: World, path: str) -> Verdict | None:
    return restoring.verdict(world.status, path)


def chosen(world: World) -> str:
    assert world.status.run is not None
    assert world.status.run.checkpoint is not None
    return world.status.run.checkpoint.path


def test_ranks_train_only_when_every_node_has_verified_the_checkpoint() -> None:
    world = begun(10, 20)
    tell(world, "/20", nodes=1)
    assert verdict(world, "/20") is None
    tell(world, "/20", nodes=2)
    assert verdict(world, "/20") == Verdict("go")
    assert world.status.last_checkpoint is not None
    assert world.status.last_checkpoint.verified_time is not None
    assert [each.verified_time is not None for each in world.status.checkpoints] == [True, False]
    timeline = world.status.faults[-1].timeline
    assert timeline is not None
    assert timeline.running is not None
    assert timeline.restored is not None
    assert timeline.running <= timeline.restored


def test_a_verdict_stays_after_a_late_failure_and_a_new_leader() -> None:
    world = begun(10, 20)
    tell(world, "/20", nodes=2)
    world.restart_controller()
    tell(world, "/20", nodes=0, failure=DAMAGED)
    assert verdict(world, "/20") == Verdict("go")
    assert world.status.quarantined_checkpoints == ()


def test_a_damaged_checkpoint_is_quarantined_before_the_nodes_go_to_the_older_one() -> None:
    world = begun(10, 20)
    tell(world, "/20", nodes=1, failure=DAMAGED)
    (bad,) = world.status.quarantined_checkpoints
    assert (bad.path, bad.step, bad.attempt, bad.reason) == ("/20", 20, 1, "Checksum")
    assert "slot 1 on n1" in bad.message
    assert "shard 3 differs" in bad.message
    found = verdict(world, "/20")
    assert found is not None
    assert found.kind == "older"
    assert found.checkpoint is not None
    assert (found.checkpoint.path, found.checkpoint.step) == ("/10", 10)
    assert chosen(world) == "/10"
    assert verdict(world, "/10") is None
    assert events(world, "CheckpointQuarantined")[0].endswith("attempt 2 restores the one of step 10 instead: /10")
    assert world.status.phase == "Running"
    assert world.status.restarts is not None
    assert world.status.restarts.user == 0


def test_a_quarantined_checkpoint_is_never_chosen_again() -> None:
    world = begun(10, 20, 30)
    tell(world, "/30", failure=DAMAGED)
    tell(world, "/20", failure=DAMAGED)
    assert chosen(world) == "/10"
    world.restoring = None
    world.found = CheckpointSource(job="job", uid="job-uid", path="/30", step=30)  # its record is still on disk
    lose_a_node(world)
    world.until("Running", attempt=3)
    assert handed(world.directive) == "/10"
    assert [each.path for each in world.status.quarantined_checkpoints] == ["/30", "/20"]


def test_a_quarantined_checkpoint_is_not_recovered_from_its_record() -> None:
    world = begun(10, 20)
    tell(world, "/20", failure=DAMAGED)
    assert world.job is not None
    world.job = replace(world.job, status=replace(world.status, checkpoints=(), last_checkpoint=None))
    world.restoring, world.found = None, CheckpointSource(job="job", uid="job-uid", path="/20", step=20)
    lose_a_node(world)
    world.until("Failed")
    assert events(world, "CheckpointRecovered") == []


def test_a_job_without_a_good_checkpoint_fails_and_says_how_to_go_on() -> None:
    world = begun(10, 20)
    tell(world, "/20", failure=DAMAGED)
    tell(world, "/10", failure=RestoreFailure(0, "n2", "Manifest", "no manifest"))
    assert world.status.phase == "Failed"
    assert "--from-checkpoint" in world.status.message
    assert verdict(world, "/10") == Verdict("none")
    assert verdict(world, "/20") == Verdict("none")
    assert len(events(world, "CheckpointQuarantined")) == 2
    assert [each.reason for each in world.status.conditions if each.type == "Failed"] == ["CheckpointsBad"]


def test_a_job_does_not_begin_again_when_its_other_checkpoints_are_deleted() -> None:
    world = begun(10, 20)
    tell(world, "/20", failure=DAMAGED)
    world.restoring, world.disk = None, set()
    lose_a_node(world)
    world.until("Failed")
    assert "step 20 cannot be restored" in world.status.message


def test_another_jobs_quarantined_checkpoint_is_not_handed_on() -> None:
    world = begun(10, 20)
    tell(world, "/20", failure=DAMAGED)
    status = replace(world.status, checkpoints=(), last_checkpoint=None)
    listed = replace(status, checkpoints=begun(10, 20).status.checkpoints)
    listed = replace(listed, last_checkpoint=listed.checkpoints[0])  # as after a manual edit of the status
    assert [each.path for each in known(listed)] == ["/10"]


def test_a_lost_record_is_restored_from_the_nodes_that_ask() -> None:
    world = begun(10, 20)
    assert world.job is not None
    assert world.status.run is not None
    run = replace(world.status.run, checkpoint=None)
    world.job = replace(world.job, status=replace(world.status, run=run))
    tell(world, "/20", nodes=1)
    assert chosen(world) == "/20"
    tell(world, "/20", nodes=2)
    assert verdict(world, "/20") == Verdict("go")


def test_a_checkpoint_of_the_attempt_itself_needs_no_agreement() -> None:
    world = begun(10, 20)
    world.checkpoint(30)
    with pytest.raises(NotThisCheckpoint):
        verdict(world, "/30")
    with pytest.raises(NotThisCheckpoint):
        verdict(world, "/other")


@pytest.mark.parametrize(
    ("reason", "seen", "damage"),
    [
        ("Checksum", None, True),
        ("Missing", True, True),
        ("Missing", None, True),
        ("Missing", False, False),
        ("Read", False, True),
    ],
)
def test_only_the_checkpoint_itself_is_quarantined(reason: Any, seen: bool | None, damage: bool) -> None:
    assert restoring.is_damage(RestoreFailure(0, "n", reason), seen) is damage


def test_the_status_keeps_the_newest_quarantined_checkpoints() -> None:
    world = begun(10, 20)
    old = tuple(QuarantinedCheckpoint(path=f"/old{n}") for n in range(5))
    assert world.job is not None
    world.job = replace(world.job, status=replace(world.status, quarantined_checkpoints=old))
    tell(world, "/20", failure=DAMAGED)
    assert [each.path for each in world.status.quarantined_checkpoints] == ["/old1", "/old2", "/old3", "/old4", "/20"]


def test_long_paths_of_quarantined_checkpoints_do_not_fill_the_status() -> None:
    world = begun(10, 20)
    old = tuple(QuarantinedCheckpoint(path=f"/{n}" + "x" * 2000) for n in range(5))
    assert world.job is not None
    world.job = replace(world.job, status=replace(world.status, quarantined_checkpoints=old))
    tell(world, "/20", failure=DAMAGED)
    assert [each.path[:2] for each in world.status.quarantined_checkpoints] == ["/3", "/4", "/2"]


# -- nodes that ask


class Nodes:
    """The nodes of an attempt, which ask an `Agreement` whose controller may be replaced at any time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.given: dict[str, set[Verdict]] = {}
        self.writes = 0
        self.old_definition = False
        """The API server's CustomResourceDefinition does not have the fields about restores yet."""
        self.replaced: asyncio.Future[None] | None = None
        self.lead()

    def lead(self) -> None:
        """Another controller leads, which has heard of nothing yet."""
        if self.replaced is not None:
            self.replaced.set_result(None)
            self.replaced = asyncio.get_running_loop().create_future()
        members = Members(b"secret", lambda key: None)
        metrics = TrainingJobMetrics(CollectorRegistry())
        self.agreement = Agreement(lambda key: self.world.job, members, self.changed, metrics)

    def changed(self, key: str) -> None:
        asyncio.get_running_loop().call_soon(self.decide)

    def decide(self) -> None:
        self.world.restoring = self.agreement.seen("job-uid")
        for action in self.world.plan().actions:
            self.world.act(action)
            if isinstance(action, WriteStatus):
                self.writes += 1
                if self.old_definition:
                    self.drop()
                assert self.world.job is not None
                self.agreement.wrote(self.world.job, action)

    def drop(self) -> None:
        """Drop the unknown fields, as such an API server does."""
        world = self.world
        assert world.job is not None
        run = world.status.run
        world.run = run
        if run is not None and run.checkpoint is not None:
            run = replace(run, checkpoint=replace(run.checkpoint, restored=None))
        world.job = replace(world.job, status=replace(world.status, run=run, quarantined_checkpoints=()))

    def pods(self) -> list[Pod]:
        return sorted(self.world.pods.values(), key=lambda pod: pod.name)

    async def ask(self, pod: Pod, path: str, bad: set[str]) -> Verdict:
        said = RestoreRequest(attempt=2, path=path, ok=path not in bad, reason="Checksum")
        found = await self.agreement.restore("ns/job", "job-uid", pod, said)
        self.given.setdefault(path, set()).add(found)
        return found

    async def restore(self, pod: Pod, bad: set[str], rng: random.Random) -> str:
        """Restore until the verdict allows to train; returns the checkpoint, or "" without one."""
        path = "/30"
        for _ in range(50):
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
            asked, replaced = asyncio.ensure_future(self.ask(pod, path, bad)), self.replaced
            assert replaced is not None
            await asyncio.wait((asked, replaced), return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():  # the connection broke
                asked.cancel()
                continue
            found = asked.result()
            if found.kind == "go":
                return path
            if found.kind == "none":
                return ""
            assert found.checkpoint is not None
            path = found.checkpoint.path
        raise AssertionError("no verdict")


@given(
    st.lists(st.sets(st.sampled_from(["/10", "/20", "/30"])), min_size=2, max_size=2),
    st.lists(st.integers(0, 12), max_size=4),
    st.integers(0, 2**16),
)
@settings(max_examples=30, deadline=None)
def test_all_nodes_get_the_same_verdicts_from_every_leader(bad: list[set[str]], leaders: list[int], seed: int) -> None:
    world = begun(10, 20, 30)
    nodes = Nodes(world)

    async def replace_leaders() -> None:
        for turns in leaders:
            for _ in range(turns):
                await asyncio.sleep(0)
            nodes.lead()

    async def everything() -> list[str]:
        nodes.replaced = asyncio.get_running_loop().create_future()
        asks = [nodes.restore(pod, each, random.Random(seed)) for pod, each in zip(nodes.pods(), bad, strict=True)]
        leading = asyncio.ensure_future(replace_leaders())
        found = await asyncio.gather(*asks)
        await leading
        return found

    ended = asyncio.run(everything())
    good = [path for path in ("/30", "/20", "/10") if all(path not in each for each in bad)]
    assert ended == [good[0] if good else ""] * 2
    for path, verdicts in nodes.given.items():
        firm = {each for each in verdicts if each.kind != "none"}  # after the end of the job, this is the only answer
        assert len({each.kind for each in firm}) <= 1, path
    assert not {each.path for each in world.status.quarantined_checkpoints} & set(good)


@pytest.mark.parametrize(("bad", "chosen"), [(set(), "/30"), ({"/30"}, "/20"), ({"/30", "/20"}, "/10")])
def test_an_older_resource_definition_does_not_keep_the_nodes_waiting(bad: set[str], chosen: str) -> None:
    nodes = Nodes(begun(10, 20, 30))
    nodes.old_definition = True

    async def everything() -> list[str]:
        nodes.replaced = asyncio.get_running_loop().create_future()
        asks = [
            nodes.restore(pod, each, random.Random(1)) for pod, each in zip(nodes.pods(), [bad, set()], strict=True)
        ]
        return await asyncio.wait_for(asyncio.gather(*asks), 10)

    assert asyncio.run(everything()) == [chosen] * 2
    assert nodes.writes == 1 + len(bad), "the same result is not written again and again"


def test_many_nodes_cost_one_write_of_the_status() -> None:
    world = begun(10, 20)
    assert world.job is not None
    assert world.status.run is not None
    world.job = replace(world.job, status=replace(world.status, run=replace(world.status.run, nodes=500)))
    nodes = Nodes(world)
    pod = nodes.pods()[0]
    many = [replace(pod, metadata=replace(pod.metadata, uid=f"pod-{n}")) for n in range(500)]
    seen: list[int] = []
    nodes.agreement._changed = lambda key: seen.append(1)

    async def ask() -> None:
        asks = [asyncio.ensure_future(nodes.ask(each, "/20", set())) for each in many]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert seen == [1], "one decision, when the last node has verified it"
        for each in asks:
            each.cancel()

    asyncio.run(ask())


def test_a_node_of_an_older_attempt_is_refused() -> None:
    nodes = Nodes(begun(10, 20))
    said = RestoreRequest(attempt=1, path="/20", ok=True)
    with pytest.raises(Stale) as refused:
        asyncio.run(nodes.agreement.restore("ns/job", "job-uid", nodes.pods()[0], said))
    assert refused.value.current_attempt == 2


def test_a_failure_of_an_unknown_kind_ends_only_the_attempt() -> None:
    nodes = Nodes(begun(10, 20))
    said = RestoreRequest(attempt=2, path="/20", ok=False, reason="SomethingNew")
    found = asyncio.run(nodes.agreement.restore("ns/job", "job-uid", nodes.pods()[0], said))
    assert found == Verdict("fail")
    assert nodes.writes == 0
