"""GPU nodes get work once they have passed their test, in the boot they are in; idle ones are tested again."""

from __future__ import annotations

from datetime import timedelta

from muster.kube.errors import NotFound
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from tests.scenarios.preflight.conftest import PENDING, Trusting
from tests.support.anyserver import BY_PREFLIGHT
from tests.support.waiting import until

OLD = timedelta(hours=100)


async def test_new_nodes_join_with_the_taint_are_tested_and_get_a_gang_whole(trusting: Trusting) -> None:
    await trusting.configure()
    trusting.control()
    first, second = await trusting.add_nodes(2, taints=(PENDING,))
    await trusting.cluster.add_gang("train", 2)
    pods = await trusting.until_tested(first, second)
    for pod in pods.values():
        assert pod.spec.containers[0].resources is not None
        assert str(pod.spec.containers[0].resources.limits["nvidia.com/gpu"]) == "8"
    await trusting.end_test(first)
    await trusting.until_pending(second)
    assert await trusting.cluster.bound("train") == {}
    await trusting.end_test(second)
    await trusting.cluster.until_bound("train", 2, "the gang gets both nodes once both have passed")
    record = await trusting.record(first)
    assert record is not None
    assert (record.spec.passed, record.spec.driver, len(record.spec.figures)) == (True, "570.124.06", 8)
    assert record.spec.figures[3].figures == {"memory_bandwidth_gb_per_s": 4103.0}


async def test_a_reboot_brings_no_taint_back_and_no_gang_either_until_the_node_is_tested(trusting: Trusting) -> None:
    """Only the scheduler looks: no controller of preflight runs while the gang comes."""
    await trusting.configure()
    control = trusting.control()
    (name,) = await trusting.add_nodes(1)
    await trusting.until_pending(name)
    await trusting.trusted(name)
    control.cancel()
    await until("it has ended", control.done)
    trusting.tasks.remove(control)
    await trusting.reboot(name)
    await trusting.cluster.add_gang("train", 1)

    async def said_why() -> bool:
        return any("1 untested (rebooted since its test)" in event.message for event in await trusting.cluster.events())

    await until("an Event says that the node is untested", said_why)
    assert await trusting.pending() == set()
    assert await trusting.cluster.bound("train") == {}
    trusting.control()
    await trusting.until_pending(name)
    await trusting.end_test(name)
    await trusting.cluster.until_bound("train", 1, "the gang gets the node that was tested in this boot")


async def test_a_node_that_fails_stays_out_and_says_what_was_wrong(trusting: Trusting) -> None:
    await trusting.configure()
    trusting.control()
    bad, good = await trusting.add_nodes(2)
    await trusting.cluster.add_gang("train", 1)
    await trusting.until_tested(bad, good)
    await trusting.end_test(bad, passed=False)
    assert "wrong-word on GPU-3" in await trusting.event("PreflightFailed", bad)
    await trusting.end_test(good)
    await trusting.cluster.until_bound("train", 1, "the gang gets the node that passed")
    assert set((await trusting.cluster.bound("train")).values()) == {good}
    await trusting.until_pending(bad)
    record = await trusting.record(bad)
    assert record is not None
    assert [(each.code, each.gpu) for each in record.spec.failures] == [("wrong-word", "GPU-3")]


@BY_PREFLIGHT
async def test_an_idle_node_is_tested_again_and_the_test_leaves_at_once_for_a_gang(trusting: Trusting) -> None:
    await trusting.configure()
    trusting.control()
    first, second = await trusting.add_nodes(2)
    await trusting.until_tested(first, second)
    await trusting.trusted(first, second, ago=OLD)
    again = await trusting.until_tested(first, second)
    assert await trusting.pending() == set()
    assert all(pod.metadata.labels["muster.dev/balloon"] == "true" for pod in again.values())
    await trusting.cluster.add_gang("train", 2)
    await trusting.cluster.until_bound("train", 2, "tests left for the gang")
    assert await trusting.tests() == {}


@BY_PREFLIGHT
async def test_a_gang_that_asks_for_fresh_tests_has_nodes_tested_for_it(trusting: Trusting) -> None:
    await trusting.configure("image: none\nresources: {cpu: 100m}\nretests: {everyHours: 1000}\n")
    trusting.control()
    (name,) = await trusting.add_nodes(1)
    await trusting.until_test(name)
    await trusting.trusted(name, ago=OLD)
    pod = trusting.cluster.pod("careful", 0, 1)
    pod["metadata"]["annotations"]["muster.dev/tested-within-hours"] = "24"
    await trusting.client.create(pod, kind=Pod)
    await trusting.end_test(name)
    await trusting.cluster.until_bound("careful", 1, "the gang gets the node that was tested for it")


async def test_two_controllers_make_one_test_and_one_record(trusting: Trusting) -> None:
    await trusting.configure()
    trusting.control()
    trusting.control()
    (name,) = await trusting.add_nodes(1)
    pods = await trusting.until_tested(name)
    await trusting.end_test(name)
    await trusting.until_pending()
    record = await trusting.record(name)
    assert record is not None

    async def removed() -> bool:
        try:
            await trusting.client.get(Pod, pods[name].name, trusting.namespace)
        except NotFound:
            return True
        return False

    await until("the test's pod is gone", removed)
    await trusting.cluster.add_gang("train", 1)
    await trusting.cluster.until_bound("train", 1, "the node is in use")
    assert (await trusting.record(name)).spec == record.spec  # type: ignore[union-attr]


@BY_PREFLIGHT
async def test_a_node_that_joins_is_tested_only_once_it_was_opened(trusting: Trusting) -> None:
    await trusting.configure()
    trusting.control()
    joining = {"key": "muster.dev/joining", "value": "pending", "effect": "NoSchedule"}
    held, other = await trusting.add_nodes(2, taints=(joining,))
    await trusting.until_pending(held, other)
    await trusting.client.patch(Node, other, {"spec": {"taints": [PENDING]}})
    await trusting.until_tested(other)
    await trusting.client.patch(Node, held, {"spec": {"taints": [PENDING]}})
    await trusting.until_tested(other, held)
