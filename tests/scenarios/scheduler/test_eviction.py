"""Gangs of others leave by the Eviction API: whole where their disruption budgets admit that, else not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from muster.kube.connection.config import load_config
from muster.kube.errors import Invalid, NotFound
from muster.kube.objects.batch import Job
from muster.kube.objects.pod import Pod
from muster.kube.objects.policy import PodDisruptionBudget
from muster.scheduler.explain.why_waiting import explain, load_snapshot
from muster.scheduler.plan import Settings
from muster.scheduler.reasons import NodeWhy
from tests.scenarios.scheduler.conftest import Cluster
from tests.support import workloads
from tests.support.hearing import HearingClient
from tests.support.priorityclasses import make_priority_class
from tests.support.waiting import until

CLASSES = {"muster-test-low": -100, "muster-test-high": 1000}
LOW = {"priorityClassName": "muster-test-low"}
HIGH = {"priorityClassName": "muster-test-high"}
COSCHEDULING = workloads.CUSTOM[0]
ADMISSION = "admissionregistration.k8s.io/v1"


async def make_classes(cluster: Cluster) -> None:
    for name, value in CLASSES.items():
        await make_priority_class(cluster.client, name, value)


@pytest.fixture
async def foreign(cluster: Cluster) -> AsyncIterator[Cluster]:
    await make_classes(cluster)
    await workloads.install(cluster.client, COSCHEDULING)
    yield cluster
    await workloads.uninstall(cluster.client, COSCHEDULING)


@pytest.fixture
async def real(cluster: Cluster, request: pytest.FixtureRequest) -> Cluster:
    if request.node.callspec.params["api_server"] != "real":
        pytest.skip("the embedded API server has neither Jobs nor admission policies")
    await make_classes(cluster)
    return cluster


async def set_budget(cluster: Cluster, name: str, labels: dict[str, str], *, stay: int, allowed: int) -> None:
    """A budget that keeps so many pods; waits until it is counted, and until the scheduler has heard of that."""
    spec = {"minAvailable": stay, "selector": {"matchLabels": labels}}
    body = workloads.object_of(PodDisruptionBudget.RESOURCE, name, cluster.namespace, spec)
    await cluster.client.create(body)

    async def counted() -> PodDisruptionBudget | None:
        found = await cluster.client.get(PodDisruptionBudget, name, cluster.namespace)
        is_counted = found.status.observed_generation > 0 and found.status.disruptions_allowed == allowed
        return found if is_counted else None

    budget: PodDisruptionBudget = await until(f"the budget admits {allowed}", counted)
    assert cluster.hearing is not None
    await cluster.hearing.until_heard(budget)


async def add_pod(cluster: Cluster, name: str, labels: dict[str, str], spec: dict[str, Any]) -> None:
    body = cluster.pod("none", 0, 1, spec=spec)
    body["metadata"] = {"name": name, "namespace": cluster.namespace, "labels": labels}
    await cluster.client.create(body)


async def add_group(cluster: Cluster, size: int, *, grace_s: int = 0) -> None:
    """A gang of Coscheduling's that runs, of low priority: budgets count pods that are ready."""
    group = workloads.object_of(COSCHEDULING, "low", cluster.namespace, {"minMember": size})
    await cluster.client.create(group)
    for number in range(size):
        spec = {**LOW, "terminationGracePeriodSeconds": grace_s}
        await add_pod(cluster, f"low-{number}", {workloads.POD_GROUP: "low", "app": "low"}, spec)
    await run(cluster, "low-", size)


async def run(cluster: Cluster, prefix: str, size: int) -> None:
    """Wait until so many pods of that name are bound, then say of them what kubelets say."""

    async def bound() -> list[Pod]:
        found = [pod for pod in await cluster.pods() if pod.name.startswith(prefix) and pod.spec.node_name]
        return found if len(found) == size else []

    try:
        pods: list[Pod] = await until(f"{prefix} runs", bound)
    except AssertionError as error:
        seen = [f"{pod.name} on {pod.spec.node_name or 'no node'}, {pod.status}" for pod in await cluster.pods()]
        said = [f"{event.involved_object.name}: {event.reason}: {event.message}" for event in await cluster.events()]
        raise AssertionError("\n".join([str(error), *seen, *said])) from None
    for pod in pods:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
        conditions = [ready, {"type": "PodScheduled", "status": "True", "lastTransitionTime": now}]
        status = {"status": {"phase": "Running", "conditions": conditions}}
        await cluster.client.patch(Pod, pod.name, status, namespace=cluster.namespace, subresource="status")


async def alive(cluster: Cluster, prefix: str = "low-") -> set[str]:
    """Pods that have a node and are not being deleted."""
    pods = await cluster.pods()
    return {p.name for p in pods if p.name.startswith(prefix) and p.spec.node_name and not p.terminating}


async def node_reasons(cluster: Cluster, gang: str) -> dict[NodeWhy, str]:
    """The typed reasons that `muster explain` gives for nodes."""
    snapshot = await load_snapshot(cluster.client)
    found = snapshot.find_workload(cluster.namespace, gang)
    assert found is not None
    return {count.why: count.detail for count in explain(snapshot, found).nodes}


async def has_event(cluster: Cluster, reason: str, text: str) -> bool:
    return any(event.reason == reason and text in event.message for event in await cluster.events())


async def test_a_gang_whose_budget_admits_all_is_evicted_whole_and_its_nodes_bound_when_all_are_gone(
    foreign: Cluster,
) -> None:
    cluster = foreign
    await cluster.add_nodes(3)
    cluster.schedule()
    await add_group(cluster, 3, grace_s=3600)
    await set_budget(cluster, "budget", {"app": "low"}, stay=0, allowed=3)
    await cluster.add_gang("high", 2, spec=HIGH)

    async def reported() -> bool:
        return await alive(cluster) == set()

    await until("all three are evicted", reported)
    leaving = [pod for pod in await cluster.pods() if pod.name.startswith("low-")]
    assert len(leaving) == 3
    for pod in leaving:
        reasons = {each.reason for each in pod.status.conditions if each.type == "DisruptionTarget"}
        assert reasons == {"EvictionByEvictionAPI"}
    await asyncio.sleep(0.2)  # time to do wrong in: nothing may be bound while the pods are there
    assert await cluster.bound("high") == {}
    for pod in leaving:
        await cluster.client.delete(Pod, pod.name, namespace=cluster.namespace, grace_s=0)
    await cluster.until_bound("high", 2)


async def test_a_gang_whose_budget_does_not_admit_all_is_not_touched_and_explain_says_why(foreign: Cluster) -> None:
    cluster = foreign
    await cluster.add_nodes(3)
    cluster.schedule()
    await add_group(cluster, 3)
    await set_budget(cluster, "budget", {"app": "low"}, stay=1, allowed=2)
    await cluster.add_gang("high", 2, spec=HIGH)

    async def said() -> bool:
        return await has_event(cluster, "FailedScheduling", "/budget admits 2 of 3 evictions")

    await until("the event says what holds it", said)
    reasons = await node_reasons(cluster, "high")
    assert f"{cluster.namespace}/budget admits 2 of 3 evictions" in reasons[NodeWhy.PROTECTED]
    assert await alive(cluster) == {"low-0", "low-1", "low-2"}
    assert await cluster.placement("high") is None
    await cluster.client.delete(PodDisruptionBudget, "budget", namespace=cluster.namespace)
    await cluster.until_bound("high", 2, "nothing but the budget was in the way")
    assert await alive(cluster) == set()


async def test_a_gang_that_two_budgets_cover_is_not_touched(foreign: Cluster) -> None:
    cluster = foreign
    await cluster.add_nodes(2)
    cluster.schedule()
    await add_group(cluster, 2)
    for name in ("one", "other"):
        await set_budget(cluster, name, {"app": "low"}, stay=0, allowed=2)
    await cluster.add_gang("high", 2, spec=HIGH)

    async def said() -> bool:
        return await has_event(cluster, "FailedScheduling", "more than one disruption budget (one, other)")

    await until("the event says what holds it", said)
    assert await alive(cluster) == {"low-0", "low-1"}


class DiesBeforeEvicting(HearingClient):
    """Its process gets as far as dry runs."""

    async def evict(self, pod_name: str, *, dry_run: bool = False, **options: Any) -> None:
        if not dry_run:
            await asyncio.Event().wait()
        await super().evict(pod_name, dry_run=dry_run, **options)


async def test_a_new_leader_finishes_what_the_old_one_began(foreign: Cluster) -> None:
    cluster = foreign
    await cluster.add_nodes(3)
    async with DiesBeforeEvicting(load_config(str(cluster.kubeconfig))) as client:
        _, first = cluster.schedule(client)
        await add_group(cluster, 3)
        await set_budget(cluster, "budget", {"app": "low"}, stay=0, allowed=3)
        await cluster.add_gang("high", 3, spec=HIGH)

        async def reported() -> bool:
            placement = await cluster.placement("pod-group.low")
            return placement is not None and placement.status.phase == "Preempting"

        await until("the gang is asked to leave", reported)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    assert len(await alive(cluster)) == 3
    cluster.schedule()
    await cluster.until_bound("high", 3)
    assert await alive(cluster) == set()


async def test_single_pods_are_evicted_for_a_single_pod(foreign: Cluster) -> None:
    cluster = foreign
    await cluster.add_nodes(2)
    cluster.schedule()
    for name in ("low-kept", "low-free"):
        await add_pod(cluster, name, {"app": name}, LOW)
    await run(cluster, "low-", 2)
    await set_budget(cluster, "budget", {"app": "low-kept"}, stay=1, allowed=0)
    await add_pod(cluster, "high", {}, HIGH)
    await run(cluster, "high", 1)
    assert await alive(cluster) == {"low-kept"}

    async def gone() -> bool:
        return await cluster.placement("pod.high") is None

    await until("the placement that kept the node for the pod is gone", gone)


def template(cluster: Cluster, labels: dict[str, str], **spec: Any) -> dict[str, Any]:
    body = cluster.pod("none", 0, 1, spec=spec)
    return {"metadata": {"labels": labels}, "spec": body["spec"]}


async def test_an_indexed_job_is_evicted_whole_and_runs_again_when_there_is_room(real: Cluster) -> None:
    cluster = real
    await cluster.add_nodes(3)
    cluster.schedule(settings=Settings(hold_s=1.0))  # the pods of `high` are not recreated
    spec = {
        "parallelism": 3,
        "completions": 3,
        "completionMode": "Indexed",
        "backoffLimitPerIndex": 1,  # with one limit for all three the next pods come after 40 s, so after 10
        "template": template(cluster, {"app": "low"}, restartPolicy="Never", **LOW),
    }
    await cluster.client.create(workloads.object_of(Job.RESOURCE, "low", cluster.namespace, spec), kind=Job)
    await run(cluster, "low-", 3)
    before = await alive(cluster)
    await set_budget(cluster, "budget", {"app": "low"}, stay=0, allowed=3)
    await cluster.add_gang("high", 3, spec=HIGH)
    await cluster.until_bound("high", 3)
    assert await alive(cluster) == set()
    await cluster.kill("high")
    await run(cluster, "low-", 3)
    assert not await alive(cluster) & before


async def test_refused_dry_run_prevents_all_evictions(real: Cluster) -> None:
    cluster = real
    await cluster.add_nodes(2)
    policy = f"no-eviction-{cluster.namespace}"
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/eviction"], "operations": ["CREATE"]}]
    named = {"metadata": {"name": policy}}
    refuse = {"expression": "object.metadata.name != 'low-1-0'", "message": "low-1 stays here"}
    await cluster.client.create(
        {
            **named,
            "apiVersion": ADMISSION,
            "kind": "ValidatingAdmissionPolicy",
            "spec": {"matchConstraints": {"resourceRules": rules}, "validations": [refuse]},
        }
    )
    await cluster.client.create(
        {
            **named,
            "apiVersion": ADMISSION,
            "kind": "ValidatingAdmissionPolicyBinding",
            "spec": {"policyName": policy, "validationActions": ["Deny"]},
        }
    )

    async def in_force() -> bool:
        try:
            await cluster.client.evict("low-1-0", namespace=cluster.namespace)
        except Invalid:
            return True
        except NotFound:
            pass
        return False

    try:
        await until("the policy is in force", in_force)
        controller, _ = cluster.schedule()
        for number in range(2):
            await cluster.client.create(cluster.pod("low", number, 2, spec=LOW))
        await cluster.until_bound("low", 2)
        await cluster.add_gang("high", 1, spec=HIGH)

        async def said() -> bool:
            return await has_event(cluster, "EvictionRefused", "low-1 stays here")

        await until("the event says who refused", said)
        snapshot = controller.state.snapshot()
        found = snapshot.find_workload(cluster.namespace, "high")
        assert found is not None
        reasons = {count.why: count.detail for count in explain(snapshot, found).nodes}
        assert "low-1 stays here" in reasons[NodeWhy.EVICTION_REFUSED]
        assert len(await cluster.bound("low")) == 2
        assert not any(pod.terminating for pod in await cluster.pods("low"))
        assert await cluster.placement("high") is None
    finally:
        for plural in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            await cluster.client.request("DELETE", f"/apis/{ADMISSION}/{plural}/{policy}")
